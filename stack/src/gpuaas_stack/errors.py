"""The error of the stack that a person must act on: a message without a stack trace."""

from __future__ import annotations


class StackError(Exception):
    """Something the person at the terminal can understand and change."""
