"""One function for each kind of operation."""
