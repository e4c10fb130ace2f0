"""Artifacts in the OCI registry: pushes, signatures, trusted keys, who may pull."""
