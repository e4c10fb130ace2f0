"""The messages between the platform and a node agent, as JSON texts over the agent's WebSocket.

The agent dials `WS /v1/agent/link` with a bearer token that it signs with its own key (see
`AGENT_AUDIENCE`). Tasks are delivered at least once, also again after every reconnect, until a result
is acknowledged; the agent looks before it acts, so that a task takes effect once.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gpuaas_contract.allocations import Shape
from gpuaas_contract.base import Request, Resource
from gpuaas_contract.nodes import Inventory, NodeCondition

AGENT_AUDIENCE = "gpuaas-agent"
HEARTBEAT_SECONDS = 5
OFFLINE_AFTER_SECONDS = 15
CONDITIONS_AT_MOST = 50
MACHINE_ARTIFACTS_PATH = "/opt/gpuaas/artifacts"
"""Where a machine sees, read-only, the artifacts that were delivered to it, each named by the digest of its content."""


class TaskKind(StrEnum):
    CREATE_SLICE = "create_slice"
    DELETE_SLICE = "delete_slice"
    RESTART_SLICE = "restart_slice"
    RESIZE_SLICE = "resize_slice"
    DELIVER_ARTIFACT = "deliver_artifact"
    PREPARE_HOST = "prepare_host"
    CLEAR_HOST = "clear_host"
    RESTART_HOST = "restart_host"
    ATTACH_VOLUME = "attach_volume"
    DETACH_VOLUME = "detach_volume"
    DELETE_VOLUME = "delete_volume"
    SET_USERS = "set_users"
    RENEW_TRUST = "renew_trust"


class ProjectNetwork(Resource):
    """The bridge of one project, or of a tenant for its own machines, on one node."""

    owner_id: str
    bridge: str = Field(max_length=15)
    gateway_cidr: str
    """The bridge's own address with its prefix length, for example `10.83.1.1/24`."""


class VolumeMount(Resource):
    """A volume on the node, and where a machine sees it."""

    volume_id: str
    path: str
    size_gib: int
    make: bool
    """It was never there before, so that it is made where it is missing. Otherwise a missing one is lost: an
    empty one must not take its place."""


class CreateSlice(Resource):
    kind: Literal[TaskKind.CREATE_SLICE] = TaskKind.CREATE_SLICE
    allocation_id: str
    hostname: str
    shape: Shape
    image: str | None = None
    """An alias that the agent reported; none stands for its own."""
    network: ProjectNetwork
    address: str
    principals: dict[str, list[str]]
    """Login name on the machine to the certificate principals that may use it."""
    volumes: list[VolumeMount] = []


class DeleteSlice(Resource):
    kind: Literal[TaskKind.DELETE_SLICE] = TaskKind.DELETE_SLICE
    allocation_id: str


class RestartSlice(Resource):
    kind: Literal[TaskKind.RESTART_SLICE] = TaskKind.RESTART_SLICE
    allocation_id: str


class ResizeSlice(Resource):
    kind: Literal[TaskKind.RESIZE_SLICE] = TaskKind.RESIZE_SLICE
    allocation_id: str
    shape: Shape


class DeliverArtifact(Resource):
    kind: Literal[TaskKind.DELIVER_ARTIFACT] = TaskKind.DELIVER_ARTIFACT
    allocation_id: str
    digest: str
    """Of the file itself."""
    size: int
    repository: str = ""
    """Where it is in the registry; empty in tasks of a platform that kept files itself."""
    media_type: str = ""
    """The declared media type: a tar is inspected before a machine sees it."""


class PrepareHost(Resource):
    """Hand the host itself over: its sshd trusts the project's authority, beside all that it trusts already."""

    kind: Literal[TaskKind.PREPARE_HOST] = TaskKind.PREPARE_HOST
    allocation_id: str
    principals: dict[str, list[str]]
    """As for a slice."""


class ClearHost(Resource):
    """Remove what `prepare_host` added, and prove that it is gone."""

    kind: Literal[TaskKind.CLEAR_HOST] = TaskKind.CLEAR_HOST
    allocation_id: str


class RestartHost(Resource):
    """Reboot; done when the agent is back after it."""

    kind: Literal[TaskKind.RESTART_HOST] = TaskKind.RESTART_HOST
    allocation_id: str


class AttachVolume(Resource):
    kind: Literal[TaskKind.ATTACH_VOLUME] = TaskKind.ATTACH_VOLUME
    allocation_id: str
    volume: VolumeMount


class DetachVolume(Resource):
    kind: Literal[TaskKind.DETACH_VOLUME] = TaskKind.DETACH_VOLUME
    allocation_id: str
    volume_id: str


class DeleteVolume(Resource):
    kind: Literal[TaskKind.DELETE_VOLUME] = TaskKind.DELETE_VOLUME
    volume_id: str


class MachineUser(Resource):
    """A person on a machine."""

    login: str
    uid: int
    sudo: bool
    principal: str
    """The principal that a certificate must carry to log in as this user."""
    public_keys: list[str] = []
    """The person's own, in OpenSSH's form without options and comment."""
    remote_forwarding: bool = False
    """Whether sshd may listen on the machine for this person (`ssh -R`)."""


class MachineAccount(Resource):
    """A person whom a machine knows by name and number, and does not let in."""

    login: str
    uid: int
    leaving: bool = False
    """Sessions end, and whatever else runs for the person is left alone for now."""


class MachineGroup(Resource):
    """The group of a project."""

    name: str
    gid: int
    logins: list[str]


class SetUsers(Resource):
    """All the people that a machine has from now on: others lose their keys, their sudo and their sessions."""

    kind: Literal[TaskKind.SET_USERS] = TaskKind.SET_USERS
    allocation_id: str
    users: list[MachineUser]
    temporary: list[str] = []
    """Logins among `users` that exist for an instance only: the machine removes them afterwards."""
    accounts: list[MachineAccount] = []
    groups: list[MachineGroup] = []


class RenewTrust(Resource):
    """Ask for a host certificate anew, and trust exactly the authorities that come with it."""

    kind: Literal[TaskKind.RENEW_TRUST] = TaskKind.RENEW_TRUST
    allocation_id: str
    oldest: int
    newest: int
    """The versions that are valid, for those who read the task."""


AnyTask = (
    CreateSlice
    | DeleteSlice
    | RestartSlice
    | ResizeSlice
    | DeliverArtifact
    | AttachVolume
    | DetachVolume
    | DeleteVolume
    | PrepareHost
    | ClearHost
    | RestartHost
    | SetUsers
    | RenewTrust
)
TaskSpec = Annotated[AnyTask, Field(discriminator="kind")]
task_spec_adapter: TypeAdapter[AnyTask] = TypeAdapter(TaskSpec)


# Platform to agent


class TaskMessage(Resource):
    type: Literal["task"] = "task"
    task_id: str
    correlation_id: str
    spec: TaskSpec


class RotateIdentity(Resource):
    """Make a new key, offer it at `POST /v1/agent/identity`, use it from then on."""

    type: Literal["rotate_identity"] = "rotate_identity"


class TaskAcknowledged(Resource):
    """The result is stored; the agent may forget the task."""

    type: Literal["task_acknowledged"] = "task_acknowledged"
    task_id: str


class OpenStream(Resource):
    """Dial `WS /v1/agent/streams/{stream_id}` and pump bytes between it and the machine's port."""

    type: Literal["open_stream"] = "open_stream"
    stream_id: str
    allocation_id: str
    address: str
    port: int
    """22 is the machine's sshd, wherever that listens."""
    half_close: bool = False
    """An empty message in either direction says that no more bytes follow in it, and the other direction goes on.
    Without it, the stream ends as a whole when the machine hangs up."""
    correlation_id: str


class SetLeases(Resource):
    """Who may log in under a lease from now on, on all machines of the node: others are refused, and their sessions
    are cut. The first message on each link, and sent again whenever it has changed."""

    type: Literal["set_leases"] = "set_leases"
    sequence: int
    """Grows with each message of a link; `leases_set` names the last one that is in force."""
    machines: dict[str, dict[str, list[str]]]
    """Allocation to login name to the certificate principals that may use it. A machine that is missing has none."""


AnyToAgent = TaskMessage | TaskAcknowledged | OpenStream | RotateIdentity | SetLeases
ToAgent = Annotated[AnyToAgent, Field(discriminator="type")]
to_agent_adapter: TypeAdapter[AnyToAgent] = TypeAdapter(ToAgent)


# Agent to platform


class SliceReport(Resource):
    allocation_id: str
    finished: bool
    """It was made completely; one that is not is removed or made anew by its task."""
    running: bool


class Hello(Resource):
    type: Literal["hello"] = "hello"
    agent_version: str
    inventory: Inventory
    slices: list[SliceReport] | None = None
    """All that exist on the host, read before connecting; none where the agent cannot tell."""
    volume_ids: list[str] | None = None
    """Likewise."""
    conditions: list[NodeCondition] = Field(default=[], max_length=CONDITIONS_AT_MOST)


class Heartbeat(Resource):
    type: Literal["heartbeat"] = "heartbeat"


class NodeConditions(Resource):
    """Everything that is wrong with the host now, sent whenever that changes; empty when all is mended."""

    type: Literal["conditions"] = "conditions"
    conditions: list[NodeCondition] = Field(max_length=CONDITIONS_AT_MOST)


class TaskProgress(Resource):
    type: Literal["task_progress"] = "task_progress"
    task_id: str
    step: str
    message: str = Field(default="", max_length=2_000)


class TaskResult(Resource):
    type: Literal["task_result"] = "task_result"
    task_id: str
    ok: bool
    message: str = Field(default="", max_length=4_000)
    """On failure: what could not be done and why, in plain words."""
    refused: dict[str, str] = Field(default={}, max_length=10_000)
    """`set_users`: login names that the machine could not make, and why. All the others it has."""
    path: str | None = None
    """`deliver_artifact`: where the file is on the machine."""


class StreamRefused(Resource):
    type: Literal["stream_refused"] = "stream_refused"
    stream_id: str
    message: str


class LeasesSet(Resource):
    """The machines refuse who is not named in that message, and let in who is."""

    type: Literal["leases_set"] = "leases_set"
    sequence: int


AnyFromAgent = Hello | Heartbeat | NodeConditions | TaskProgress | TaskResult | StreamRefused | LeasesSet
FromAgent = Annotated[AnyFromAgent, Field(discriminator="type")]
from_agent_adapter: TypeAdapter[AnyFromAgent] = TypeAdapter(FromAgent)


# Over HTTP, with the same token: `POST /v1/agent/host-certificates`


class HostCertificateRequest(Request):
    allocation_id: str
    public_key: str = Field(max_length=1_000, pattern=r"^ssh-ed25519 [A-Za-z0-9+/=]+( [^\x00-\x1f]*)?$")


class HostCertificate(Resource):
    certificate: str
    user_authority: str
    """Public keys of the owner's authority, one on each line, for `TrustedUserCAKeys`: two while it is rotated."""


# Over HTTP, with the same token: `GET /v1/agent/artifacts/{digest}`


class ArtifactSource(Resource):
    """Where the file of a delivery is, and a token that reads that repository for a few minutes."""

    url: str
    """Of the blob, in the registry."""
    token: str
    expires_in: int
