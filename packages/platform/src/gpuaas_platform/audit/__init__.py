"""The audit chain: sealing, reading, verifying."""
