"""What the stack raises when a person must act: a message without a stack trace."""

from __future__ import annotations


class StackError(Exception):
    """Something the person at the terminal can understand and change."""
