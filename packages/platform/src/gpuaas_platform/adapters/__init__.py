"""Everything outside PostgreSQL that the platform talks to."""
