"""Shared parts of several test suites."""
