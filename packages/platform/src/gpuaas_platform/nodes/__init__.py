"""Enrolled hosts and their agents: identity, heart-beats, tasks and what agents report."""
