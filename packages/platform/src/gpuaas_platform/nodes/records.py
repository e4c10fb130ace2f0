"""Nodes, their join tokens and their tasks as the database has them."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.agent_link import AnyTask, task_spec_adapter
from gpuaas_contract.base import JsonObject
from gpuaas_contract.nodes import Capacity, Inventory, NodeCondition, NodeDifference, NodeStatus
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class JoinTokenRecord(Record):
    id: str
    node_name: str
    expires_at: datetime
    used_by_node_id: str | None
    revision: int


@dataclass(frozen=True, slots=True)
class JoinTokenView(JoinTokenRecord):
    valid: bool
    """Whether it has not expired."""


@dataclass(frozen=True, slots=True)
class NodeIdentity(Record):
    """A node as far as its agent has to be known by it."""

    id: str
    name: str
    public_key_pem: str
    next_public_key_pem: str | None
    revoked_at: datetime | None
    rotation_requested_at: datetime | None
    link_id: str | None
    """Its newest link that has said hello, and where that comes from."""
    link_address: str


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """A node by itself, as every change of it returns it."""

    id: str
    name: str
    public_key_pem: str
    next_public_key_pem: str | None
    """The key that its agent has offered and not used yet."""
    status: NodeStatus
    intent: NodeStatus
    inventory: Inventory | None
    """None until its agent has connected for the first time."""
    inventory_refused: str
    """Why the last inventory was refused; empty where it was not."""
    link_replaced_at: datetime | None
    differences: tuple[NodeDifference, ...]
    conditions: tuple[NodeCondition, ...]
    last_seen_at: datetime | None
    revoked_at: datetime | None
    rotation_requested_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime

    @property
    def shown_status(self) -> NodeStatus:
        """The status that people and placement see: what is wrong with the host shows in a node that would be ready.

        It is not stored, so that a version that does not know of conditions goes on serving."""
        return NodeStatus.IMPAIRED if self.status == NodeStatus.READY and self.conditions else self.status


@dataclass(frozen=True, slots=True)
class NodeView(NodeRecord):
    """A node with the machines and volumes on it, and what they take of it."""

    allocation_ids: tuple[str, ...]
    volume_ids: tuple[str, ...]
    volume_names: tuple[str, ...]
    cpus: int
    memory_mib: int
    disk_gib: int
    gpus: int

    @property
    def allocated(self) -> Capacity:
        return Capacity(cpus=self.cpus, memory_mib=self.memory_mib, disk_gib=self.disk_gib, gpus=self.gpus)


@dataclass(frozen=True, slots=True)
class EnrolledNode(Record):
    """A node whose agent has said what it has."""

    id: str
    name: str
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class NodeTaskRecord(Record):
    id: str
    allocation_id: str | None
    """None for a task about a volume alone."""
    volume_id: str | None
    spec: JsonObject
    state: str
    correlation_id: str

    def read_spec(self) -> AnyTask:
        return task_spec_adapter.validate_python(self.spec)
