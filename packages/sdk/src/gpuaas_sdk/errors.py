"""Everything that the SDK raises, as one tree.

GpuaasError
├── TransportError            no answer: connection refused, cut or timed out
├── ProtocolError             an answer that is not in the contract's words
├── LeaseLostError            somebody newer holds the lease; stop at once, change nothing
│   ├── StaleLeaseError       … said by the platform (also a ConflictError)
│   └── MachineFencedError    … said by a machine
├── DeliveryFailedError       an artifact did not reach a machine
└── ApiError                  the platform answered with a problem
    ├── InvalidRequestError   ├── IdempotencyConflictError
    ├── UnauthenticatedError
    ├── ForbiddenError        ├── PasswordChangeRequiredError, AccessDeniedError
    ├── NotFoundError
    ├── CursorExpiredError    list again, then follow the feed from now
    ├── ConflictError         the present state forbids it
    │   ├── NameTakenError, VersionExistsError, InvalidStateError, RevisionMismatchError, NotEntitledError,
    │   │   NotEmptyError, OperationRunningError, AllocationInUseError, VolumeInUseError, NoCapacityError,
    │   │   QuotaExceededError, AlreadyDeliveredError, ShapeUnsupportedError, ActionNotAllowedError,
    │   │   ComponentLimitError, PolicyNotMetError, SignatureError
    │   └── LeaseHeldError, StaleLeaseError
    ├── AuthorizationPendingError   nobody has decided yet; ask again
    │   └── SlowDownError     … and less often
    ├── UnavailableError      ├── NodeOfflineError, RateLimitedError, IdempotencyInFlightError
    └── InternalError
"""

from gpuaas_contract.problems import AllowedAction, Code, FieldError, Problem


class GpuaasError(Exception):
    """The root of the tree."""


class TransportError(GpuaasError):
    """No answer came. Whether the request took effect is not known."""


class ProtocolError(GpuaasError):
    """Something answered, but not in the words of the contract: a proxy, or another version."""


class LeaseLostError(GpuaasError):
    """The lease under which this was tried is over; a successor may be at work already."""


class MachineFencedError(LeaseLostError):
    """A machine has seen a newer fencing token and refused ours. Nothing was changed there."""


class DeliveryFailedError(GpuaasError):
    """An artifact could not be brought to a machine; the message says why."""


class ApiError(GpuaasError):
    """The platform refused, and said why in `problem`."""

    def __init__(self, problem: Problem, *, retry_after: float | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.retry_after = retry_after

    @property
    def code(self) -> Code:
        return self.problem.code

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def detail(self) -> str:
        return self.problem.detail

    @property
    def correlation_id(self) -> str:
        return self.problem.correlation_id

    @property
    def retryable(self) -> bool:
        return self.problem.retryable

    @property
    def errors(self) -> list[FieldError]:
        return self.problem.errors

    @property
    def allowed_actions(self) -> list[AllowedAction]:
        return self.problem.allowed_actions

    def __str__(self) -> str:
        return f"{self.detail} ({self.code}, {self.correlation_id})"


class InvalidRequestError(ApiError):
    """The request itself is wrong; sending it again will not help."""


class IdempotencyConflictError(InvalidRequestError):
    """The idempotency key was used before, with another body."""


class UnauthenticatedError(ApiError):
    """The credentials are missing, wrong or expired."""


class ForbiddenError(ApiError):
    """The caller is known, and may not do this."""


class PasswordChangeRequiredError(ForbiddenError):
    """The password was good for one login: choose another one first."""


class AccessDeniedError(ForbiddenError):
    """The person said no to the program that wanted to log in."""


class AuthorizationPendingError(ApiError):
    """The person has not decided about the login yet."""


class SlowDownError(AuthorizationPendingError):
    """… and the program asked too often: wait five seconds longer between two questions."""


class NotFoundError(ApiError):
    """It does not exist, or the caller may not know of it."""


class CursorExpiredError(ApiError):
    """The feed no longer reaches back to this cursor."""


class ConflictError(ApiError):
    """The present state does not allow it."""


class NameTakenError(ConflictError):
    """Something of that name exists already."""


class VersionExistsError(ConflictError):
    """That version was published before; versions never change."""


class NotEntitledError(ConflictError):
    """The tenant may not have this app; its publisher or an operator grants that."""


class InvalidStateError(ConflictError):
    """Not possible in the state that it is in."""


class NotEmptyError(InvalidStateError):
    """Something is still in it."""


class AlreadyDeliveredError(ConflictError):
    """The lease had this secret already; the next lease gets it again."""


class SignatureError(ConflictError):
    """An artifact has no signature, or none with a key that its owner trusts."""


class RevisionMismatchError(ConflictError):
    """It changed since it was read."""


class OperationRunningError(ConflictError):
    """Another operation on the same member is not finished."""


class ActionNotAllowedError(ConflictError):
    """Not an action for this state, this mode or this member; `allowed_actions` of the resource has those that are."""


class ComponentLimitError(ConflictError):
    """The component would have more members than it may, or fewer than it needs."""


class PolicyNotMetError(ConflictError):
    """Too few of many can be done for the policy of the request; nothing was done. `context` has each result."""


class ShapeUnsupportedError(ConflictError):
    """This kind of machine cannot do that: a whole host is not resized, an external machine not restarted."""


class AllocationInUseError(ConflictError):
    """The machine is in use by an app instance."""


class VolumeInUseError(ConflictError):
    """The volume is attached to a machine."""


class NoCapacityError(ConflictError):
    """No node has room."""


class QuotaExceededError(ConflictError):
    """The project's quota does not allow that much."""


class LeaseHeldError(ConflictError):
    """Somebody else holds the lease."""


class StaleLeaseError(ConflictError, LeaseLostError):
    """The fencing token is older than the lease's present one."""


class UnavailableError(ApiError):
    """The platform, or something that it needs, is not there at the moment; try again later."""


class RateLimitedError(UnavailableError):
    """Too many requests in a short time; `retry_after` says when there is room again."""


class IdempotencyInFlightError(UnavailableError):
    """The first request with this key is still being worked on: its answer comes later."""


class NodeOfflineError(UnavailableError):
    """The host of the machine has lost its connection to the platform."""


class InternalError(ApiError):
    """A bug in the platform; the correlation id finds it in the logs."""


ANSWERS_LATER = (TransportError, UnavailableError, ProtocolError, InternalError)
"""After these the same request may succeed later: they say nothing about what was asked."""

BY_CODE: dict[Code, type[ApiError]] = {
    Code.INVALID_REQUEST: InvalidRequestError,
    Code.UNAUTHENTICATED: UnauthenticatedError,
    Code.INVALID_CREDENTIALS: UnauthenticatedError,
    Code.FORBIDDEN: ForbiddenError,
    Code.PASSWORD_CHANGE_REQUIRED: PasswordChangeRequiredError,
    Code.CSRF_INVALID: ForbiddenError,
    Code.NOT_FOUND: NotFoundError,
    Code.METHOD_NOT_ALLOWED: InvalidRequestError,
    Code.NAME_TAKEN: NameTakenError,
    Code.INVALID_STATE: InvalidStateError,
    Code.NOT_EMPTY: NotEmptyError,
    Code.LAST_PLATFORM_ADMIN: InvalidStateError,
    Code.KEY_LIMIT: InvalidStateError,
    Code.REVISION_MISMATCH: RevisionMismatchError,
    Code.IDEMPOTENCY_CONFLICT: IdempotencyConflictError,
    Code.IDEMPOTENCY_IN_FLIGHT: IdempotencyInFlightError,
    Code.STALE_LEASE: StaleLeaseError,
    Code.LEASE_HELD: LeaseHeldError,
    Code.OPERATION_RUNNING: OperationRunningError,
    Code.ACTION_NOT_ALLOWED: ActionNotAllowedError,
    Code.COMPONENT_LIMIT: ComponentLimitError,
    Code.POLICY_NOT_MET: PolicyNotMetError,
    Code.SECRET_SUSPECTED: InvalidRequestError,
    Code.NO_CAPACITY: NoCapacityError,
    Code.QUOTA_EXCEEDED: QuotaExceededError,
    Code.ALLOCATION_IN_USE: AllocationInUseError,
    Code.VOLUME_IN_USE: VolumeInUseError,
    Code.IMAGE_UNKNOWN: InvalidRequestError,
    Code.SHAPE_TOO_LARGE: InvalidRequestError,
    Code.SHAPE_UNSUPPORTED: ShapeUnsupportedError,
    Code.PLACEMENT_INVALID: InvalidRequestError,
    Code.INPUTS_INVALID: InvalidRequestError,
    Code.MANIFEST_INVALID: InvalidRequestError,
    Code.VERSION_EXISTS: VersionExistsError,
    Code.VERSION_RETIRED: InvalidStateError,
    Code.NOT_ENTITLED: NotEntitledError,
    Code.DIGEST_MISMATCH: InvalidRequestError,
    Code.ARTIFACT_INVALID: InvalidRequestError,
    Code.SIGNATURE_MISSING: SignatureError,
    Code.SIGNATURE_INVALID: SignatureError,
    Code.NODE_OFFLINE: NodeOfflineError,
    Code.JOIN_TOKEN_INVALID: UnauthenticatedError,
    Code.CURSOR_INVALID: InvalidRequestError,
    Code.CURSOR_EXPIRED: CursorExpiredError,
    Code.TOO_LARGE: InvalidRequestError,
    Code.RATE_LIMITED: RateLimitedError,
    Code.KEY_INVALID: InvalidRequestError,
    Code.ALREADY_DELIVERED: AlreadyDeliveredError,
    Code.DELIVERY_USED: AlreadyDeliveredError,
    Code.DELIVERY_EXPIRED: InvalidStateError,
    Code.WRAPPING_TOKEN_INVALID: InvalidRequestError,
    Code.UNAVAILABLE: UnavailableError,
    Code.INTERNAL: InternalError,
    Code.AUTHORIZATION_PENDING: AuthorizationPendingError,
    Code.SLOW_DOWN: SlowDownError,
    Code.ACCESS_DENIED: AccessDeniedError,
    Code.EXPIRED_TOKEN: UnauthenticatedError,
    Code.INVALID_GRANT: UnauthenticatedError,
    Code.UNSUPPORTED_GRANT_TYPE: InvalidRequestError,
    Code.UNSUPPORTED_TOKEN_TYPE: InvalidRequestError,
}
"""A test fails when the contract gains a code that is missing here."""


def error_from_problem(problem: Problem, *, retry_after: float | None = None) -> ApiError:
    return BY_CODE[problem.code](problem, retry_after=retry_after)
