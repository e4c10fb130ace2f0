"""Nodes: enrolled hosts that carry allocations."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpuaas_contract.base import Name, OwnedResource, Page, Request, Resource


class NodeStatus(StrEnum):
    ENROLLING = "enrolling"
    READY = "ready"
    OFFLINE = "offline"


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
    """What the agent found on its host."""

    capacity: Capacity
    gpu_devices: list[str] = []
    virtualisation: str
    """For example `lxd 5.0.2`."""
    images: list[str] = []


class EnrolRequest(Request):
    join_token: str = Field(max_length=200)
    public_key_pem: str = Field(max_length=2_000)


class Enrolment(Resource):
    node_id: str
    name: str


class Node(OwnedResource):
    name: str
    status: NodeStatus
    last_seen_at: AwareDatetime | None = None
    inventory: Inventory | None = None
    allocated: Capacity


class NodePage(Page):
    items: list[Node]
