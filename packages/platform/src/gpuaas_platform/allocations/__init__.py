"""Machines of projects and tenants: requested, placed on nodes, resized, released; their timeline and usage."""
