"""One module per kind of operation: the phases, wrapped in the steps of the operation."""
