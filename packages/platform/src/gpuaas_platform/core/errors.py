"""The one exception that services raise to refuse something; the API turns it into problem+json."""

from collections.abc import Sequence

from gpuaas_contract.base import JsonObject
from gpuaas_contract.problems import AllowedAction, Code, FieldError


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not an error of ours
    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        allowed_actions: Sequence[AllowedAction] = (),
        context: JsonObject | None = None,
        retry_after: int | None = None,
        denied: bool = False,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.allowed_actions = list(allowed_actions)
        self.context = context or {}
        self.retry_after = retry_after
        self.denied = denied
        """The policy said no, whatever the answer looks like: the audit trail keeps it."""

    @property
    def status(self) -> int:
        return self.code.status

    @property
    def retryable(self) -> bool:
        return self.code.retryable


MOST_ERRORS, LONGEST = 20, 300
"""An answer is not made as large as the nonsense that it answers."""
LONGEST_ID = 100
"""The most that an answer repeats of an identifier that was not found."""


def not_found(noun: str, identifier: str, *, denied: bool = False) -> Refusal:
    """Also the answer for what the caller may not know of: both look exactly alike."""
    return Refusal(Code.NOT_FOUND, f"there is no {noun} {identifier[:LONGEST_ID]!r}", denied=denied)
