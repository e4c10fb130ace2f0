"""App instances and their members: deployed, observed, checked before anything is changed."""
