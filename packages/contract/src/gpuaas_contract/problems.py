"""Errors on the wire: RFC 9457 problem details with a stable code. Codes are never reused."""

from enum import StrEnum
from typing import Self

from gpuaas_contract.base import JsonObject, Resource
from gpuaas_contract.wire import CORRELATION_HEADER

PROBLEM_MEDIA_TYPE = "application/problem+json"
IDEMPOTENCY_HEADER = "Idempotency-Key"
IDEMPOTENCY_HOURS = 24
"""How long the platform remembers a key; a retry later than that is a new request."""


class Family(StrEnum):
    """The class of errors that a code belongs to. The SDK has an exception for each family."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    EXPIRED = "expired"
    CONFLICT = "conflict"
    PENDING = "pending"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


_RETRYABLE = True


class DeclaredCode(StrEnum):
    """A code is its value, its HTTP status and its family, and `_RETRYABLE` where the same request may succeed later.
    One without a status or a family cannot be defined."""

    status: int
    family: Family
    retryable: bool

    def __new__(cls, value: str, status: int, family: Family, retryable: bool = False) -> Self:
        code = str.__new__(cls, value)
        code._value_ = value
        code.status, code.family, code.retryable = status, family, retryable
        return code

    @property
    def problem_title(self) -> str:
        return self.value.replace("_", " ")


class Code(DeclaredCode):
    INVALID_REQUEST = "invalid_request", 422, Family.INVALID_REQUEST
    UNAUTHENTICATED = "unauthenticated", 401, Family.UNAUTHENTICATED
    INVALID_CREDENTIALS = "invalid_credentials", 401, Family.UNAUTHENTICATED
    FORBIDDEN = "forbidden", 403, Family.FORBIDDEN
    NOT_OPERATOR = "not_operator", 403, Family.FORBIDDEN
    PASSWORD_CHANGE_REQUIRED = "password_change_required", 403, Family.FORBIDDEN
    CSRF_INVALID = "csrf_invalid", 403, Family.FORBIDDEN
    HTTPS_REQUIRED = "https_required", 403, Family.FORBIDDEN
    NOT_FOUND = "not_found", 404, Family.NOT_FOUND
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, Family.INVALID_REQUEST
    NAME_TAKEN = "name_taken", 409, Family.CONFLICT
    INVALID_STATE = "invalid_state", 409, Family.CONFLICT
    NOT_EMPTY = "not_empty", 409, Family.CONFLICT
    LAST_PLATFORM_ADMIN = "last_platform_admin", 409, Family.CONFLICT
    KEY_LIMIT = "key_limit", 409, Family.CONFLICT
    REVISION_MISMATCH = "revision_mismatch", 412, Family.CONFLICT
    IDEMPOTENCY_CONFLICT = "idempotency_conflict", 422, Family.INVALID_REQUEST
    IDEMPOTENCY_IN_FLIGHT = "idempotency_in_flight", 409, Family.UNAVAILABLE, _RETRYABLE
    STALE_LEASE = "stale_lease", 409, Family.CONFLICT
    LEASE_HELD = "lease_held", 409, Family.CONFLICT, _RETRYABLE
    OPERATION_RUNNING = "operation_running", 409, Family.CONFLICT
    ACTION_NOT_ALLOWED = "action_not_allowed", 409, Family.CONFLICT
    COMPONENT_LIMIT = "component_limit", 409, Family.CONFLICT
    POLICY_NOT_MET = "policy_not_met", 409, Family.CONFLICT
    SECRET_SUSPECTED = "secret_suspected", 422, Family.INVALID_REQUEST
    NO_CAPACITY = "no_capacity", 409, Family.CONFLICT
    QUOTA_EXCEEDED = "quota_exceeded", 409, Family.CONFLICT
    IMAGE_UNKNOWN = "image_unknown", 422, Family.INVALID_REQUEST
    SHAPE_TOO_LARGE = "shape_too_large", 422, Family.INVALID_REQUEST
    ALLOCATION_IN_USE = "allocation_in_use", 409, Family.CONFLICT
    SHAPE_UNSUPPORTED = "shape_unsupported", 409, Family.CONFLICT
    VOLUME_IN_USE = "volume_in_use", 409, Family.CONFLICT
    PLACEMENT_INVALID = "placement_invalid", 422, Family.INVALID_REQUEST
    INPUTS_INVALID = "inputs_invalid", 422, Family.INVALID_REQUEST
    OPERATOR_UNUSABLE = "operator_unusable", 422, Family.INVALID_REQUEST
    MANIFEST_INVALID = "manifest_invalid", 422, Family.INVALID_REQUEST
    SCHEMA_TOO_SLOW = "schema_too_slow", 422, Family.INVALID_REQUEST
    VERSION_EXISTS = "version_exists", 409, Family.CONFLICT
    VERSION_RETIRED = "version_retired", 409, Family.CONFLICT
    NOT_ENTITLED = "not_entitled", 409, Family.CONFLICT
    DIGEST_MISMATCH = "digest_mismatch", 422, Family.INVALID_REQUEST
    ARTIFACT_INVALID = "artifact_invalid", 422, Family.INVALID_REQUEST
    SIGNATURE_MISSING = "signature_missing", 409, Family.CONFLICT
    SIGNATURE_INVALID = "signature_invalid", 409, Family.CONFLICT
    NODE_OFFLINE = "node_offline", 503, Family.UNAVAILABLE, _RETRYABLE
    JOIN_TOKEN_INVALID = "join_token_invalid", 401, Family.UNAUTHENTICATED
    CURSOR_INVALID = "cursor_invalid", 422, Family.INVALID_REQUEST
    CURSOR_EXPIRED = "cursor_expired", 410, Family.EXPIRED
    TOO_LARGE = "too_large", 413, Family.INVALID_REQUEST
    RATE_LIMITED = "rate_limited", 429, Family.UNAVAILABLE, _RETRYABLE
    KEY_INVALID = "key_invalid", 422, Family.INVALID_REQUEST
    ALREADY_DELIVERED = "already_delivered", 409, Family.CONFLICT
    DELIVERY_USED = "delivery_used", 409, Family.CONFLICT
    DELIVERY_EXPIRED = "delivery_expired", 409, Family.CONFLICT
    WRAPPING_TOKEN_INVALID = "wrapping_token_invalid", 422, Family.INVALID_REQUEST
    UNAVAILABLE = "unavailable", 503, Family.UNAVAILABLE, _RETRYABLE
    INTERNAL = "internal", 500, Family.INTERNAL
    # The codes of OAuth 2 (RFC 6749, 7009, 8628), used by its routes only.
    AUTHORIZATION_PENDING = "authorization_pending", 400, Family.PENDING
    SLOW_DOWN = "slow_down", 400, Family.PENDING
    ACCESS_DENIED = "access_denied", 400, Family.FORBIDDEN
    EXPIRED_TOKEN = "expired_token", 400, Family.UNAUTHENTICATED
    INVALID_GRANT = "invalid_grant", 400, Family.UNAUTHENTICATED
    UNSUPPORTED_GRANT_TYPE = "unsupported_grant_type", 400, Family.INVALID_REQUEST
    UNSUPPORTED_TOKEN_TYPE = "unsupported_token_type", 400, Family.INVALID_REQUEST


class FieldError(Resource):
    pointer: str
    """A JSON pointer to the field of the request body, or `query/<name>`, `path/<name>`."""
    detail: str


class AllowedAction(Resource):
    """Something that the caller can do next, as a person reads it and as a program calls it."""

    action: str
    title: str
    method: str | None = None
    href: str | None = None


class Problem(Resource):
    type: str
    title: str
    status: int
    detail: str
    code: Code
    correlation_id: str
    retryable: bool = False
    errors: list[FieldError] = []
    allowed_actions: list[AllowedAction] = []
    context: JsonObject = {}


__all__ = [
    "CORRELATION_HEADER",
    "IDEMPOTENCY_HEADER",
    "IDEMPOTENCY_HOURS",
    "PROBLEM_MEDIA_TYPE",
    "AllowedAction",
    "Code",
    "Family",
    "FieldError",
    "Problem",
]
