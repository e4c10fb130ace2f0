"""Nodes: enrolled hosts that carry allocations."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpuaas_contract.allocations import ShapeKind
from gpuaas_contract.base import Name, OwnedResource, Page, Request, Resource


class NodeStatus(StrEnum):
    ENROLLING = "enrolling"
    READY = "ready"
    CORDONED = "cordoned"
    """Keeps its allocations and takes no new ones."""
    DRAINING = "draining"
    """As cordoned, and the owners of its machines are asked to move."""
    IMPAIRED = "impaired"
    """Its agent is connected and says that the host is not as it should be (`conditions`): as cordoned, until it is."""
    OFFLINE = "offline"
    """Its agent is not connected; its machines may still run."""
    RETIRED = "retired"


class JoinTokenCreate(Request):
    node_name: Name


class JoinToken(Resource):
    id: str
    node_name: str
    token: str
    """Shown once. It enrols one node and is then worthless."""
    expires_at: AwareDatetime


class Capacity(Resource):
    cpus: int
    memory_mib: int
    disk_gib: int
    gpus: int


class Inventory(Resource):
    """The inventory of the host, read by its agent."""

    capacity: Capacity
    gpu_devices: list[str] = []
    virtualisation: str
    """For example `lxd 5.0.2`; `none` where the host itself is handed over."""
    images: list[str] = []
    default_image: str | None = None
    """The default image of machines on this node."""
    offers: list[ShapeKind] = [ShapeKind.SLICE]
    """Slices of it, or the host as a whole."""
    address: str | None = None
    """The host's own address, where it is handed over."""
    caveats: list[str] = []
    """Sentences about what machines of this host can take from each other, by its kind and not by a fault."""


class EnrolRequest(Request):
    join_token: str = Field(max_length=200)
    public_key_pem: str = Field(max_length=2_000)


class Enrolment(Resource):
    node_id: str
    name: str


class AgentKey(Request):
    public_key_pem: str = Field(max_length=2_000)


class Finding(StrEnum):
    MISSING = "missing"
    """An active allocation whose machine is not there, or a volume: it failed, and is not charged any more."""
    LEFT_OVER = "left_over"
    """A machine whose allocation is released: it is deleted."""
    UNKNOWN = "unknown"
    """A machine of no allocation of this node: it is left alone, a person must look."""


class NodeDifference(Resource):
    allocation_id: str | None = None
    volume_id: str | None = None
    """Where it is about a volume, and not about a machine."""
    finding: Finding
    message: str
    at: AwareDatetime


class NodeCondition(Resource):
    """Something about the host that is not as it should be; the node takes no new machines until it is mended."""

    kind: str = Field(max_length=40, pattern=r"^[a-z][a-z_]*$")
    """For programs: `firewall`, `network`."""
    message: str = Field(max_length=500)


class Node(OwnedResource):
    name: str
    status: NodeStatus
    intent: NodeStatus = NodeStatus.READY
    """The status that operators want: the node has it whenever its agent is connected."""
    identity_revoked_at: AwareDatetime | None = None
    rotation_requested_at: AwareDatetime | None = None
    """Until the agent shows its new key."""
    allocation_ids: list[str] = []
    """The allocations on the node, which are affected while it is offline."""
    volume_ids: list[str] = []
    differences: list[NodeDifference] = []
    """The differences between the host and the platform's records, found at the last connection."""
    conditions: list[NodeCondition] = []
    """Conditions that its agent last reported of the host; none where all is as it should be."""
    last_seen_at: AwareDatetime | None = None
    inventory: Inventory | None = None
    inventory_refused: str = ""
    """Why the agent's last inventory was refused: the node stays as it was. Empty where it was not."""
    link_replaced_at: AwareDatetime | None = None
    """When a second link with the node's identity cut off one that was still open. Its events say from where."""
    allocated: Capacity


class NodePage(Page):
    items: list[Node]
