"""Choose the HTTP tests that touch what changed, by a recorded map from source files to test modules."""
