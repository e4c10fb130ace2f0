"""Usage records: what each allocation is charged for, and how long it occupied a node."""

from enum import StrEnum

from pydantic import AwareDatetime

from gpuaas_contract.allocations import Shape
from gpuaas_contract.base import Page, Resource


class UsageKind(StrEnum):
    CHARGED = "charged"
    """From active to the moment that a release was accepted: at most one per allocation."""
    OCCUPIED = "occupied"
    """From the claim on a node to the evidence that the machine is gone: at most one per allocation."""


class UsedShape(Resource):
    since: AwareDatetime
    shape: Shape


class UsageRecord(Resource):
    id: str
    kind: UsageKind
    tenant_id: str
    project_id: str | None = None
    """None where the tenant itself owns the machine."""
    allocation_id: str
    allocation_name: str
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    seconds: float
    """So far, where it has not ended."""
    shapes: list[UsedShape]
    """Each size that the machine had in this time, oldest first."""


class UsagePage(Page):
    items: list[UsageRecord]
