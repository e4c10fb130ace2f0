"""Changes, events and requests as the database has them."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class ChangeRecord(Record):
    """A change that has its place in the feed."""

    position: int
    noun: str
    resource_id: str
    event: str
    message: str
    revision: int
    tenant_id: str | None
    project_id: str | None
    instance_id: str | None
    app_slug: str | None
    correlation_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class EventRecord(Record):
    """Something that happened."""

    at: datetime
    noun: str
    resource_id: str
    event: str
    message: str
    member_id: str | None
    operation_id: str | None
    principal_id: str
    correlation_id: str


@dataclass(frozen=True, slots=True)
class InstanceEventRecord(EventRecord):
    """An event in the history of an instance."""

    seq: int
    """Its place in the order of all events."""


@dataclass(frozen=True, slots=True)
class TracedEvent(EventRecord):
    """An event with the scope that decides who may see it."""

    tenant_id: str | None
    project_id: str | None
    app_slug: str | None


@dataclass(frozen=True, slots=True)
class RequestLogRecord(Record):
    """A request that was made to change something, or that was refused."""

    at: datetime
    method: str
    route: str
    status: int
    principal_id: str | None
    duration_ms: float
    correlation_id: str
    tenant_id: str | None
    project_id: str | None


@dataclass(frozen=True, slots=True)
class SilentMachine(Record):
    """A machine of a live member that is not active, or whose node is not connected."""

    id: str
    name: str
    status: AllocationStatus
    node_name: str | None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events; nothing given is all of them."""

    member_id: str | None = None
    operation_id: str | None = None
    noun: str | None = None
    event: str | None = None
    """This one, or those that begin with it."""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    nouns: frozenset[str] = frozenset()
    tenant_id: str | None = None
    project_id: str | None = None
    instance_id: str | None = None

    def match(self, change: ChangeRecord) -> bool:
        return (
            (not self.nouns or change.noun in self.nouns)
            and self.tenant_id in (None, change.tenant_id)
            and self.project_id in (None, change.project_id)
            and self.instance_id in (None, change.instance_id)
        )
