"""Failures of making a bundle."""


class BundleError(Exception):
    """A bundle cannot be made; the message says why, and what to do. `code` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
