"""Errors in the settings, in words for the person in front of the program."""

from enum import StrEnum


class Wrong(StrEnum):
    USAGE = "usage"
    NOT_FOUND = "not_found"
    NOT_LOGGED_IN = "not_logged_in"


class ProfileError(Exception):
    """`hint` is what to do next, mostly a command."""

    def __init__(self, message: str, wrong: Wrong, *, hint: str) -> None:
        super().__init__(message)
        self.wrong = wrong
        self.hint = hint
