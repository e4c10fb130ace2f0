"""Rules of accounts, without I/O."""
