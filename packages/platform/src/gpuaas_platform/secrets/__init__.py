"""Runtime secrets of instances, and their delivery to whoever holds a lease."""
