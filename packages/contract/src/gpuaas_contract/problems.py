"""Errors on the wire: RFC 9457 problem details with a stable code. Codes are never reused."""

from enum import StrEnum

from gpuaas_contract.base import JsonObject, Resource
from gpuaas_contract.wire import CORRELATION_HEADER

PROBLEM_MEDIA_TYPE = "application/problem+json"
IDEMPOTENCY_HEADER = "Idempotency-Key"
IDEMPOTENCY_HOURS = 24
"""How long the platform remembers a key; a retry later than that is a new request."""


class Code(StrEnum):
    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    INVALID_CREDENTIALS = "invalid_credentials"
    FORBIDDEN = "forbidden"
    PASSWORD_CHANGE_REQUIRED = "password_change_required"  # noqa: S105 - a code, not a secret
    CSRF_INVALID = "csrf_invalid"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NAME_TAKEN = "name_taken"
    INVALID_STATE = "invalid_state"
    NOT_EMPTY = "not_empty"
    LAST_PLATFORM_ADMIN = "last_platform_admin"
    KEY_LIMIT = "key_limit"
    REVISION_MISMATCH = "revision_mismatch"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    IDEMPOTENCY_IN_FLIGHT = "idempotency_in_flight"
    STALE_LEASE = "stale_lease"
    LEASE_HELD = "lease_held"
    OPERATION_RUNNING = "operation_running"
    ACTION_NOT_ALLOWED = "action_not_allowed"
    COMPONENT_LIMIT = "component_limit"
    POLICY_NOT_MET = "policy_not_met"
    SECRET_SUSPECTED = "secret_suspected"  # noqa: S105 - a code, not a secret
    NO_CAPACITY = "no_capacity"
    QUOTA_EXCEEDED = "quota_exceeded"
    IMAGE_UNKNOWN = "image_unknown"
    SHAPE_TOO_LARGE = "shape_too_large"
    ALLOCATION_IN_USE = "allocation_in_use"
    SHAPE_UNSUPPORTED = "shape_unsupported"
    VOLUME_IN_USE = "volume_in_use"
    PLACEMENT_INVALID = "placement_invalid"
    INPUTS_INVALID = "inputs_invalid"
    MANIFEST_INVALID = "manifest_invalid"
    VERSION_EXISTS = "version_exists"
    VERSION_RETIRED = "version_retired"
    NOT_ENTITLED = "not_entitled"
    DIGEST_MISMATCH = "digest_mismatch"
    ARTIFACT_INVALID = "artifact_invalid"
    SIGNATURE_MISSING = "signature_missing"
    SIGNATURE_INVALID = "signature_invalid"
    NODE_OFFLINE = "node_offline"
    JOIN_TOKEN_INVALID = "join_token_invalid"  # noqa: S105 - a code, not a secret
    CURSOR_INVALID = "cursor_invalid"
    CURSOR_EXPIRED = "cursor_expired"
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    KEY_INVALID = "key_invalid"
    ALREADY_DELIVERED = "already_delivered"
    DELIVERY_USED = "delivery_used"
    DELIVERY_EXPIRED = "delivery_expired"
    WRAPPING_TOKEN_INVALID = "wrapping_token_invalid"  # noqa: S105 - a code, not a secret
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"
    # The words of OAuth 2 (RFC 6749, 7009, 8628), used by its routes only.
    AUTHORIZATION_PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    ACCESS_DENIED = "access_denied"
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a code, not a secret
    INVALID_GRANT = "invalid_grant"
    UNSUPPORTED_GRANT_TYPE = "unsupported_grant_type"
    UNSUPPORTED_TOKEN_TYPE = "unsupported_token_type"  # noqa: S105 - a code, not a secret


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
    "FieldError",
    "Problem",
]
