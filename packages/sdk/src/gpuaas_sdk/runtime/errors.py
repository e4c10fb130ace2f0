"""The ways in which a handler ends without success. Anything else that it raises is a bug."""

from gpuaas_contract.base import JsonObject


class RetryLater(Exception):  # noqa: N818 - a decision, not an error
    """Hand the lease back and retry after `after` seconds (None: a growing pause)."""

    def __init__(self, after: float | None, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class PlatformAway(RetryLater):
    """The platform did not answer; this says nothing about the machines or the operation."""

    def __init__(self, error: Exception) -> None:
        super().__init__(None, f"the platform does not answer: {error}")


class OperationCancelled(Exception):  # noqa: N818 - the outcome of an operation
    """The operation is being cancelled. Raised between two steps; a handler lets it pass, or cleans up and re-raises
    it."""


class OperationFailed(Exception):  # noqa: N818 - the outcome of an operation
    """End the operation as failed, with a stable code and a message for people. It is not retried automatically."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        retryable: bool = False,
        member_usable: bool = False,
        result: JsonObject | None = None,
        evidence: JsonObject | None = None,
    ) -> None:
        """`evidence` is shown with the step that raises this; `member_usable` says that the member works as before."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retryable = retryable
        self.member_usable = member_usable
        self.result = result or {}
        self.evidence = evidence or {}


class ControllerMisconfiguredError(Exception):
    """The controller cannot work with what it was given; waiting would not help."""
