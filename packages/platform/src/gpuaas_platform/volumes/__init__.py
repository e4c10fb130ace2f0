"""Storage volumes: made, placed on a node, attached to machines, deleted."""
