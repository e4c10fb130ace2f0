"""Ownership on machines: record what is brought before it is brought, and remove only what the record says."""
