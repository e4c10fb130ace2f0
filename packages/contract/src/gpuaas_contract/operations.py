"""Operations: long work with steps, done by an app's controller under a lease."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpuaas_contract.allocations import Shape
from gpuaas_contract.base import JsonObject, Key, Message, OwnedResource, Page, Request, Resource
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.problems import AllowedAction

LEASE_SECONDS = 15

EVIDENCE_BYTES = 64 * 1024
"""The most that the evidence of a step may have, as JSON."""
RESULT_BYTES = 1024 * 1024
"""The same for the result of an operation."""
PREFLIGHT_STEP = "preflight"
"""The first step of a deploy, which the platform reports itself: the app's own checks of the machines."""


class Kind(StrEnum):
    """Kinds whose meaning the platform knows. A manifest says which of them its app has, and may add its own."""

    DEPLOY = "deploy"
    START = "start"
    STOP = "stop"
    RESTART = "restart"
    UPGRADE = "upgrade"
    """Its input has `version`, and `inputs` where those change with it."""
    CONFIGURE = "configure"
    """Its input has `inputs`: the deploy inputs from now on."""
    DECOMMISSION = "decommission"

    ADD = "add"
    DRAIN = "drain"
    RESUME = "resume"
    REMOVE = "remove"
    REPLACE = "replace"
    """Its input has `allocation_id`: the machine of the member that takes over."""
    RECOVER = "recover"
    PREFLIGHT = "preflight"
    """Looks and changes nothing; its result is a `PreflightResult`. Made by the platform, never requested."""
    RESIZE = "resize"
    """Asks a member whether its machine may have another size; see `ResizeQuestion`."""


MEMBER_KINDS = frozenset({Kind.ADD, Kind.DRAIN, Kind.RESUME, Kind.REMOVE, Kind.REPLACE, Kind.RECOVER, Kind.RESIZE})
"""About one member each. Declared without a component, they are for the members of every component."""
INSTALLING_KINDS = frozenset({Kind.DEPLOY, Kind.UPGRADE, Kind.ADD, Kind.REPLACE})
"""Bring an app, or another version of it, to a machine: the tenant must be entitled to the app."""
TEARDOWN_KINDS = frozenset({Kind.REMOVE, Kind.DECOMMISSION})
"""Only take apart: their controller gets artifacts also where the tenant is no longer entitled to the app."""
RESIZE = Kind.RESIZE.value


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


class CommandKind(StrEnum):
    STEP = "step"
    """A script, in a systemd unit of that name."""
    FILE = "file"
    """A file was written at that path."""


class RemoteCommand(Resource):
    """A command that ran on a machine: its name there and how it ended. Never its input."""

    allocation_id: str = Field(max_length=64)
    machine: str = Field(max_length=255)
    kind: CommandKind
    name: str = Field(max_length=500)
    started_at: AwareDatetime
    seconds: float = Field(ge=0)
    exit_status: int | None = None
    """None where no answer came."""


MOST_COMMANDS = 200
"""Of one step; the newest ones are kept."""


class Step(Resource):
    key: str
    title: str
    status: StepStatus
    message: str = ""
    evidence: JsonObject = {}
    commands: list[RemoteCommand] = []
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
    """The process that holds it, as it calls itself."""
    expires_at: AwareDatetime
    expired: bool = False
    """The holder stopped renewing it: any controller of the app can claim the operation."""


class Operation(OwnedResource):
    instance_id: str | None = None
    """None for a `preflight`, which is about what is only being thought of: see `preflight_id`."""
    preflight_id: str | None = None
    member_id: str | None = None
    replacement_member_id: str | None = None
    """Of a `replace`: the member that takes over."""
    bulk_id: str | None = None
    project_id: str
    app_slug: str
    kind: str
    input: JsonObject
    state: OperationState
    queued: bool = False
    """Waits for operations that were requested before it; nobody can claim it yet."""
    waits_for: list[str] = []
    gate_preflight_id: str | None = None
    """Of what a deploy makes: the preflight without whose success it does not begin. None where that was skipped, or
    the app has no checks of its own."""
    cancel_requested: bool = False
    """Its controller is asked to stop at the next boundary between steps."""
    steps: list[Step] = []
    attempt: int
    deadline: AwareDatetime
    error: OperationError | None = None
    result: JsonObject = {}
    """The result that the app reports at the end: the teardown receipt of a decommission, for example."""
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
    """Absent for an operation on the whole instance."""
    input: JsonObject = {}
    queue: bool = False
    """Wait for what runs already, instead of being refused. It is cancelled when that does not succeed."""


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


class WorkAcknowledged(Resource):
    """Answers a heart-beat or the report of a step, in the words of the operation. `GET` shows the rest of it."""

    id: str
    revision: int
    state: OperationState
    cancel_requested: bool = False
    """The controller is asked to stop at the next boundary between steps."""
    lease: Lease


class StepReport(Request):
    """Announce a step as running before its side effect; report it again when it ended."""

    fencing_token: int
    key: Key
    title: str = Field(min_length=1, max_length=200)
    status: StepStatus
    message: Message = ""
    evidence: JsonObject = {}
    commands: list[RemoteCommand] = Field(default=[], max_length=MOST_COMMANDS)
    """The commands that the step ran on machines; the SDK's machines record them."""


class CompleteRequest(Request):
    fencing_token: int
    result: JsonObject = {}
    member_statuses: dict[str, MemberStatus] = Field(default={}, max_length=1_000)
    """Members of the operation that get this status in the same transaction: all of it, or nothing."""


class CancelledRequest(Request):
    """Reports that the controller has stopped as requested."""

    fencing_token: int
    result: JsonObject = {}
    member_statuses: dict[str, MemberStatus] = Field(default={}, max_length=1_000)


class FailRequest(Request):
    fencing_token: int
    error: OperationError
    result: JsonObject = {}
