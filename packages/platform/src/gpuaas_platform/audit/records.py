"""The audit trail as the database has it."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.audit import AuditOutcome
from gpuaas_contract.base import JsonObject
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class AuditEntryRecord(Record):
    id: str
    at: datetime
    chain: str
    """A tenant's id, or that of the platform's own chain."""
    position: int | None
    """Its place in the chain; None until it is sealed."""
    batch: int | None
    principal_id: str
    action: str
    target: str
    outcome: AuditOutcome
    project_id: str | None
    correlation_id: str
    fingerprint: str
    detail: JsonObject
    address: str
    user_agent: str
    service: str
    form: int


@dataclass(frozen=True, slots=True)
class SealedEntryRecord(AuditEntryRecord):
    """An entry that has its place in the chain."""

    position: int


@dataclass(frozen=True, slots=True)
class AuditBatchRecord(Record):
    """A sealed part of a chain."""

    chain: str
    number: int
    first_position: int
    last_position: int
    hash: str


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; nothing given is all of them."""

    action: str | None = None
    """This one, or those that begin with it."""
    principal_id: str | None = None
    target: str | None = None
    outcome: str | None = None
    correlation_id: str | None = None
