"""The history of instances: events, explanations, and the trace of one correlation id."""

from pydantic import AwareDatetime

from gpuaas_contract.audit import AuditEntry
from gpuaas_contract.base import JsonObject, Page, Resource
from gpuaas_contract.findings import Finding
from gpuaas_contract.instances import Instance, Member
from gpuaas_contract.operations import Operation, Step
from gpuaas_contract.problems import AllowedAction

EVENT_DAYS = 365
"""How long the events of an instance are kept."""
REQUEST_DAYS = 14
"""How long records of requests are kept."""


class InstanceEvent(Resource):
    at: AwareDatetime
    noun: str
    """The noun that changed: `instance`, `member`, `operation`, …"""
    resource_id: str
    event: str
    """One of the events of the noun: see `gpuaas_contract.events`."""
    message: str = ""
    member_id: str | None = None
    operation_id: str | None = None
    principal_id: str
    """The principal that caused it; `platform` for the platform itself."""
    correlation_id: str


class InstanceEventPage(Page):
    items: list[InstanceEvent]


class Explanation(Resource):
    """The explanation of an instance's state: the member and operation behind it, and the next actions."""

    summary: str
    """One sentence for a person."""
    instance: Instance
    member: Member | None = None
    """The member of the operation, else one that is not well."""
    member_counts: dict[str, int]
    """How many live members have each status."""
    operation: Operation | None = None
    """The one that failed and that nothing has followed, else the one under way, else the newest."""
    failed_step: Step | None = None
    """The last step of that operation that failed, with its evidence."""
    correlation_id: str
    """Search for it in logs, on machines, and with `GET /v1/traces/{id}`."""
    adapter_detail: JsonObject = {}
    """The member's details, as the app's controller reported them."""
    waiting: list[Finding] = []
    """The obstacles to progress."""
    actions: list[AllowedAction] = []
    """The actions that are allowed now on the operation, the member and the instance."""
    events: list[InstanceEvent] = []
    """The newest ones, the newest last."""


class RequestRecord(Resource):
    """A request that was made to change something, or that was refused."""

    at: AwareDatetime
    method: str
    route: str
    """As it is declared, without ids."""
    status: int
    principal_id: str | None = None
    duration_ms: float
    correlation_id: str
    project_id: str | None = None


class Trace(Resource):
    """All that one correlation id touched, as far as the caller may see it; each list in the order of time."""

    correlation_id: str
    requests: list[RequestRecord]
    audit: list[AuditEntry]
    operations: list[Operation]
    """With their steps, and the commands that were run on machines in each."""
    events: list[InstanceEvent]
    truncated: bool = False
    """Whether entries were left out."""
