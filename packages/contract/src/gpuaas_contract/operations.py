"""Operations: long work with steps, done by an app's controller under a lease."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpuaas_contract.allocations import Shape
from gpuaas_contract.base import JsonObject, Key, Message, OwnedResource, Page, Request, Resource
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.problems import AllowedAction

LEASE_SECONDS = 15
RESIZE = "resize"
"""The kind of operation that asks a member whether its machine may have another size; see `ResizeQuestion`."""


class OperationState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in {OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED}


class StepStatus(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Step(Resource):
    key: str
    title: str
    status: StepStatus
    message: str = ""
    evidence: JsonObject = {}
    attempt: int
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None


class OperationError(Resource):
    code: str = Field(max_length=100)
    detail: Message
    retryable: bool
    member_usable: bool = False


class Lease(Resource):
    holder: str
    """The service account that holds it."""
    expires_at: AwareDatetime


class Operation(OwnedResource):
    instance_id: str
    member_id: str | None = None
    project_id: str
    app_slug: str
    kind: str
    input: JsonObject
    state: OperationState
    steps: list[Step] = []
    attempt: int
    deadline: AwareDatetime
    error: OperationError | None = None
    result: JsonObject = {}
    """What the app hands over at the end: the teardown receipt of a decommission, for example."""
    lease: Lease | None = None
    requested_by: str
    correlation_id: str
    allowed_actions: list[AllowedAction] = []
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None


class ResizeQuestion(Resource):
    """The input of a `resize` operation. To complete it is to agree, and the machine is resized; to fail it is to
    refuse, for the reason that the error gives."""

    allocation_id: str
    present_shape: Shape
    wanted_shape: Shape


class OperationPage(Page):
    items: list[Operation]


class OperationCreate(Request):
    kind: Key
    member_id: str | None = None
    input: JsonObject = {}


class ClaimRequest(Request):
    holder: str = Field(max_length=100, pattern=r"^[A-Za-z0-9._:-]+$")
    """Names the controller process, so that operators see who holds the lease."""


class Claim(Resource):
    operation: Operation
    fencing_token: int
    """Only grows. Every write under the lease carries it; an older one is refused."""
    lease_seconds: int


class LeaseRequest(Request):
    fencing_token: int


class StepReport(Request):
    """Announce a step as running before its side effect; report it again when it ended."""

    fencing_token: int
    key: Key
    title: str = Field(min_length=1, max_length=200)
    status: StepStatus
    message: Message = ""
    evidence: JsonObject = {}


class CompleteRequest(Request):
    fencing_token: int
    result: JsonObject = {}
    member_statuses: dict[str, MemberStatus] = Field(default={}, max_length=1_000)
    """Members of the operation that get this status in the same transaction: all of it, or nothing."""


class FailRequest(Request):
    fencing_token: int
    error: OperationError
    result: JsonObject = {}
