"""Everything that the SDK raises, as one tree.

GpuaasError
├── TransportError            no answer: connection refused, cut or timed out
│   └── CertificateError      … the platform's certificate is not trusted: nothing was sent
├── ProtocolError             an answer that does not follow the contract
├── LeaseLostError            the lease has a newer holder: stop at once, change nothing
│   ├── StaleLeaseError       … reported by the platform (also a ConflictError)
│   └── MachineFencedError    … reported by a machine
├── DeliveryFailedError       an artifact did not reach a machine
└── ApiError                  the platform answered with a problem
    ├── InvalidRequestError   ├── IdempotencyConflictError
    ├── UnauthenticatedError
    ├── ForbiddenError        ├── PasswordChangeRequiredError, AccessDeniedError, NotOperatorError
    ├── NotFoundError
    ├── CursorExpiredError    list again, then follow the feed from a fresh cursor
    ├── ConflictError         the current state forbids it
    │   ├── NameTakenError, VersionExistsError, InvalidStateError, RevisionMismatchError, NotEntitledError,
    │   │   NotEmptyError, OperationRunningError, AllocationInUseError, VolumeInUseError, NoCapacityError,
    │   │   QuotaExceededError, AlreadyDeliveredError, ShapeUnsupportedError, ActionNotAllowedError,
    │   │   ComponentLimitError, PolicyNotMetError, SignatureError
    │   └── LeaseHeldError, StaleLeaseError
    ├── AuthorizationPendingError   the login is not decided yet; poll again
    │   └── SlowDownError     … less often
    ├── UnavailableError      ├── NodeOfflineError, RateLimitedError, IdempotencyInFlightError
    └── InternalError

The contract gives every error code a family, and each family has an exception here. A narrower exception names its
codes where it is defined; a code that no exception names raises the exception of its family.
"""

from gpuaas_contract.problems import AllowedAction, Code, Family, FieldError, Problem


class GpuaasError(Exception):
    """The root of the tree."""


class TransportError(GpuaasError):
    """No answer arrived. The request may or may not have taken effect."""


class CertificateError(TransportError):
    """The platform's certificate is not trusted, or the file of authorities cannot be used. Nothing was sent."""


class ProtocolError(GpuaasError):
    """The answer does not follow the contract: it comes from a proxy, or from another version of the platform."""


class LeaseLostError(GpuaasError):
    """The lease has ended; a successor may already be at work."""


class MachineFencedError(LeaseLostError):
    """A machine has seen a newer fencing token and refused ours. Nothing was changed there."""


class DeliveryFailedError(GpuaasError):
    """An artifact could not be delivered to a machine; the message says why."""


_BY_FAMILY: dict[Family, type["ApiError"]] = {}
_BY_CODE: dict[Code, type["ApiError"]] = {}


class ApiError(GpuaasError):
    """The platform refused the request; `problem` says why."""

    def __init_subclass__(cls, *, family: Family | None = None, codes: tuple[Code, ...] = ()) -> None:
        super().__init_subclass__()
        if family is not None:
            _BY_FAMILY[family] = cls
        _BY_CODE.update(dict.fromkeys(codes, cls))

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


class InvalidRequestError(ApiError, family=Family.INVALID_REQUEST):
    """The request is invalid; sending it again will not help."""


class IdempotencyConflictError(InvalidRequestError, codes=(Code.IDEMPOTENCY_CONFLICT,)):
    """The idempotency key was already used for a different request."""


class UnauthenticatedError(ApiError, family=Family.UNAUTHENTICATED):
    """The credentials are missing, wrong or expired."""


class ForbiddenError(ApiError, family=Family.FORBIDDEN):
    """The caller is known but lacks the permission."""


class PasswordChangeRequiredError(ForbiddenError, codes=(Code.PASSWORD_CHANGE_REQUIRED,)):
    """The password was valid for one login only: change it first."""


class AccessDeniedError(ForbiddenError, codes=(Code.ACCESS_DENIED,)):
    """The person rejected the login that the program asked for."""


class NotOperatorError(ForbiddenError, LeaseLostError, codes=(Code.NOT_OPERATOR,)):
    """Another service account is the operator of the instance: leave it alone."""


class AuthorizationPendingError(ApiError, family=Family.PENDING):
    """The person has not decided about the login yet."""


class SlowDownError(AuthorizationPendingError, codes=(Code.SLOW_DOWN,)):
    """The program polls too often: add five seconds to the interval."""


class NotFoundError(ApiError, family=Family.NOT_FOUND):
    """It does not exist, or the caller may not know of it."""


class CursorExpiredError(ApiError, family=Family.EXPIRED):
    """The feed no longer reaches back to this cursor."""


class ConflictError(ApiError, family=Family.CONFLICT):
    """The current state does not allow it."""


class NameTakenError(ConflictError, codes=(Code.NAME_TAKEN,)):
    """The name is already in use."""


class VersionExistsError(ConflictError, codes=(Code.VERSION_EXISTS,)):
    """The version is already published; versions never change."""


class NotEntitledError(ConflictError, codes=(Code.NOT_ENTITLED,)):
    """The tenant has no entitlement for this app; its publisher or an operator can grant one."""


class InvalidStateError(
    ConflictError,
    codes=(
        Code.INVALID_STATE,
        Code.LAST_PLATFORM_ADMIN,
        Code.KEY_LIMIT,
        Code.VERSION_RETIRED,
        Code.DELIVERY_EXPIRED,
    ),
):
    """The resource is in a state that does not allow it."""


class NotEmptyError(InvalidStateError, codes=(Code.NOT_EMPTY,)):
    """The resource still contains something."""


class AlreadyDeliveredError(ConflictError, codes=(Code.ALREADY_DELIVERED, Code.DELIVERY_USED)):
    """The secret was already delivered under this lease; the next lease can fetch it again."""


class SignatureError(ConflictError, codes=(Code.SIGNATURE_MISSING, Code.SIGNATURE_INVALID)):
    """The artifact has no signature, or none by a key that its owner trusts."""


class RevisionMismatchError(ConflictError, codes=(Code.REVISION_MISMATCH,)):
    """The resource changed since it was read."""


class OperationRunningError(ConflictError, codes=(Code.OPERATION_RUNNING,)):
    """An operation that excludes this one has not finished."""


class ActionNotAllowedError(ConflictError, codes=(Code.ACTION_NOT_ALLOWED,)):
    """The state, the mode or the member does not allow this action; `allowed_actions` lists those that are allowed."""


class ComponentLimitError(ConflictError, codes=(Code.COMPONENT_LIMIT,)):
    """The component would have more members than its maximum, or fewer than its minimum."""


class PolicyNotMetError(ConflictError, codes=(Code.POLICY_NOT_MET,)):
    """Too few targets qualify for the policy of the request; nothing was done. `context` has each result."""


class ShapeUnsupportedError(ConflictError, codes=(Code.SHAPE_UNSUPPORTED,)):
    """This kind of machine does not support the action: a whole host cannot be resized, for example."""


class AllocationInUseError(ConflictError, codes=(Code.ALLOCATION_IN_USE,)):
    """An app instance uses the machine."""


class VolumeInUseError(ConflictError, codes=(Code.VOLUME_IN_USE,)):
    """The volume is attached to a machine."""


class NoCapacityError(ConflictError, codes=(Code.NO_CAPACITY,)):
    """No node has room."""


class QuotaExceededError(ConflictError, codes=(Code.QUOTA_EXCEEDED,)):
    """The request exceeds the quota of the project."""


class LeaseHeldError(ConflictError, codes=(Code.LEASE_HELD,)):
    """Another holder has the lease."""


class StaleLeaseError(ConflictError, LeaseLostError, codes=(Code.STALE_LEASE,)):
    """The fencing token is older than the current one of the lease."""


class UnavailableError(ApiError, family=Family.UNAVAILABLE):
    """The platform, or a service that it needs, is not available at the moment; try again later."""


class RateLimitedError(UnavailableError, codes=(Code.RATE_LIMITED,)):
    """Too many requests in a short time; `retry_after` says how long to wait."""

    give_up = False
    """Set for a log-in that has to wait for long: nobody sits that out without a word."""


class IdempotencyInFlightError(UnavailableError, codes=(Code.IDEMPOTENCY_IN_FLIGHT,)):
    """The first request with this idempotency key is still running; repeat the request to get its answer."""


class NodeOfflineError(UnavailableError, codes=(Code.NODE_OFFLINE,)):
    """The node of the machine is not connected to the platform."""


class InternalError(ApiError, family=Family.INTERNAL):
    """The platform has a bug; the correlation id finds it in the logs."""


ANSWERS_LATER = (TransportError, UnavailableError, ProtocolError, InternalError)
"""The same request may succeed later: these errors say nothing about what was asked."""


def exception_for(code: Code) -> type[ApiError]:
    return _BY_CODE.get(code) or _BY_FAMILY[code.family]


def error_from_problem(problem: Problem, *, retry_after: float | None = None) -> ApiError:
    return exception_for(problem.code)(problem, retry_after=retry_after)
