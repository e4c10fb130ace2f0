"""The change feed, histories of instances and operations, and the log of requests."""
