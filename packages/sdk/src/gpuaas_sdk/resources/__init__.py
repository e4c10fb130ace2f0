"""The routes of the platform as typed methods, one file per file of the contract."""
