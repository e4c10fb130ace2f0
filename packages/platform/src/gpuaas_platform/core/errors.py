"""The one exception that services raise to refuse something; the API turns it into problem+json."""

from collections.abc import Sequence

from gpuaas_contract.base import JsonObject
from gpuaas_contract.problems import AllowedAction, Code, FieldError

OAUTH_CODES = (
    Code.AUTHORIZATION_PENDING,
    Code.SLOW_DOWN,
    Code.ACCESS_DENIED,
    Code.EXPIRED_TOKEN,
    Code.INVALID_GRANT,
    Code.UNSUPPORTED_GRANT_TYPE,
    Code.UNSUPPORTED_TOKEN_TYPE,
)
_STATUS = {
    Code.INVALID_REQUEST: 422,
    Code.UNAUTHENTICATED: 401,
    Code.INVALID_CREDENTIALS: 401,
    Code.FORBIDDEN: 403,
    Code.PASSWORD_CHANGE_REQUIRED: 403,
    Code.CSRF_INVALID: 403,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.REVISION_MISMATCH: 412,
    Code.IDEMPOTENCY_CONFLICT: 422,
    Code.IMAGE_UNKNOWN: 422,
    Code.SHAPE_TOO_LARGE: 422,
    Code.PLACEMENT_INVALID: 422,
    Code.INPUTS_INVALID: 422,
    Code.SECRET_SUSPECTED: 422,
    Code.MANIFEST_INVALID: 422,
    Code.DIGEST_MISMATCH: 422,
    Code.ARTIFACT_INVALID: 422,
    Code.JOIN_TOKEN_INVALID: 401,
    Code.CURSOR_INVALID: 422,
    Code.CURSOR_EXPIRED: 410,
    Code.TOO_LARGE: 413,
    Code.KEY_INVALID: 422,
    Code.WRAPPING_TOKEN_INVALID: 422,
    Code.RATE_LIMITED: 429,
    Code.NODE_OFFLINE: 503,
    Code.UNAVAILABLE: 503,
    Code.INTERNAL: 500,
    **dict.fromkeys(OAUTH_CODES, 400),
}
_RETRYABLE = {Code.RATE_LIMITED, Code.IDEMPOTENCY_IN_FLIGHT, Code.NODE_OFFLINE, Code.UNAVAILABLE, Code.LEASE_HELD}


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not an error of ours
    """Codes that are not in the status table are conflicts with the present state: 409."""

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
        return _STATUS.get(self.code, 409)

    @property
    def retryable(self) -> bool:
        return self.code in _RETRYABLE


MOST_ERRORS, LONGEST = 20, 300
"""An answer is not made as large as the nonsense that it answers."""
LONGEST_ID = 100
"""What is given back of an identifier that was not found."""


def not_found(noun: str, identifier: str, *, denied: bool = False) -> Refusal:
    """Also the answer for what the caller may not know of: both look exactly alike."""
    return Refusal(Code.NOT_FOUND, f"there is no {noun} {identifier[:LONGEST_ID]!r}", denied=denied)
