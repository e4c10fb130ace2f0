"""Tenants and projects, their quotas, tokens, and the policy: who may do what."""
