"""App instances, members, preflights, reconcile leases and reported usage as the database has them."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gpuaas_contract.base import JsonObject
from gpuaas_contract.catalogue import AppVersionStatus
from gpuaas_contract.findings import Finding
from gpuaas_contract.instances import AccessNote, Condition, DesiredState, MemberStatus, Placement, Unverified
from gpuaas_contract.operations import OperationState
from gpuaas_contract.preflights import AppChecks, PreflightState
from gpuaas_contract.reconcile import ReconcileLease
from gpuaas_platform.core.records import Record
from gpuaas_platform.identity.records import OperatorRecord
from gpuaas_platform.operations.records import LastOperation, OpenOperation

Counts = dict[str, list[int]]
"""Members by component: how many live, and how many of them no open operation is about to remove. One that is about to
take over for another counts as that other."""


@dataclass(frozen=True, slots=True)
class InstanceRecord(Record):
    """An instance by itself, as every change of it returns it."""

    id: str
    project_id: str
    app_slug: str
    app_version_id: str
    name: str
    mode: str | None
    inputs: JsonObject
    placement_intent: tuple[JsonObject, ...]
    """Placements, left as they are stored: there may be a thousand, and nobody but the API reads them."""
    desired_state: DesiredState
    generation: int
    ready_since: int
    """The generation since which it must have been reported to be ready."""
    conditions: tuple[Condition, ...]
    access_notes: tuple[AccessNote, ...]
    access_credential_id: str | None
    operator_account_id: str | None
    observed_runtime: str | None
    unverified: Unverified | None
    ended_at: datetime | None
    correlation_id: str
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class InstanceView(InstanceRecord):
    """An instance with its tenant, its app version, its lease, its members and its operations."""

    tenant_id: str
    app_version: str
    manifest: JsonObject
    app_status: AppVersionStatus
    app_status_reason: str
    operator: OperatorRecord | None
    """None where there is none, or where its account was deleted."""
    reconcile_lease: ReconcileLease | None
    live_statuses: tuple[MemberStatus, ...]
    """Each status that some member has, removed ones left out."""
    counts: Counts | None
    open_operations: tuple[OpenOperation, ...]
    deployed: bool
    """Its deploy has succeeded once."""
    last_operation: LastOperation | None
    failed: bool
    """The newest operation of some target failed, left it unusable, and it is not well since."""
    last_failure: str | None
    """The words of the operation that failed last."""


@dataclass(frozen=True, slots=True)
class InstanceSummary(Record):
    """An instance as far as the rules look at it."""

    id: str
    mode: str | None
    desired_state: DesiredState
    ended_at: datetime | None
    app_version_id: str
    manifest: JsonObject
    counts: Counts | None
    open_operations: tuple[OpenOperation, ...]
    deployed: bool
    last_operation: LastOperation | None


@dataclass(frozen=True, slots=True)
class NewInstance:
    id: str
    project_id: str
    app_slug: str
    app_version_id: str
    name: str
    mode: str | None
    inputs: JsonObject
    placement_intent: list[Placement]
    access_credential_id: str | None
    operator_account_id: str | None


@dataclass(frozen=True, slots=True)
class MemberRecord(Record):
    """A member by itself, as every change of it returns it."""

    id: str
    instance_id: str
    component_key: str
    allocation_id: str
    node_id: str | None
    status: MemberStatus
    conditions: tuple[Condition, ...]
    observed_runtime: str | None
    access_credential_id: str | None
    adapter_detail: JsonObject
    replaces_member_id: str | None
    last_operation_id: str | None
    unverified: Unverified | None
    correlation_id: str
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class MemberView(MemberRecord):
    """A member with the owner of its instance, and its newest operation."""

    project_id: str
    app_slug: str
    operator_account_id: str | None
    tenant_id: str
    last_kind: str | None
    last_state: OperationState | None


@dataclass(frozen=True, slots=True)
class LiveMember(Record):
    """A member that is not removed, and its machine."""

    id: str
    component_key: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class MachineUser(LiveMember):
    """A member as whoever asks about its machine sees it."""

    instance_id: str
    instance_name: str


@dataclass(frozen=True, slots=True)
class NewMember:
    id: str
    component_key: str
    allocation_id: str
    node_id: str | None
    operation_id: str | None = None
    """The operation that is made with it."""
    replaces_member_id: str | None = None
    access_credential_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreflightSubject(Record):
    """The request that a preflight is about."""

    project_id: str
    instance_id: str | None
    """None for a deploy."""
    app_slug: str
    version: str | None
    kind: str
    request: JsonObject


@dataclass(frozen=True, slots=True)
class PreflightRecord(PreflightSubject):
    """A preflight by itself, as every change of it returns it."""

    id: str
    allocation_ids: tuple[str, ...]
    """The machines that the app's checks may look at."""
    state: PreflightState
    app_checks: AppChecks
    findings: tuple[Finding, ...]
    operation_id: str | None
    requested_by: str
    correlation_id: str
    ended_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PreflightView(PreflightRecord):
    """A preflight with its tenant."""

    tenant_id: str


@dataclass(frozen=True, slots=True)
class ReconcileLeaseRecord(Record):
    instance_id: str
    holder: str
    account_id: str
    fencing_token: int
    claimed_at: datetime
    expires_at: datetime
    expired: bool


@dataclass(frozen=True, slots=True)
class ReportedUsageRecord(Record):
    """One record of usage, as an app reported it."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    app_slug: str
    record_id: str
    """Chosen by the app."""
    work_id: str
    subject: str
    quantity: Decimal
    unit: str
    started_at: datetime
    ended_at: datetime
    labels: dict[str, str]
    reported_by: str
    reported_at: datetime


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Only the records of these; with `since` and `until`, those that are at least partly between them."""

    instance_id: str | None
    app_slug: str | None
    subject: str | None
    work_id: str | None
    unit: str | None
    since: datetime | None
    until: datetime | None
