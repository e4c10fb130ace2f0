"""Operations and bulk operations as the database has them."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.base import JsonObject
from gpuaas_contract.bulk import AtLeast, BulkPolicy, BulkResult, Policy
from gpuaas_contract.instances import DesiredState, MemberStatus, Unverified
from gpuaas_contract.operations import OperationError, OperationState, RemoteCommand, StepStatus
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class OperationTarget(Record):
    """The members that an operation is about; it has none of them where it is about the whole instance."""

    member_id: str | None
    replacement_member_id: str | None
    """Of a `replace`: the member that takes over."""

    @property
    def member_ids(self) -> set[str]:
        return {id for id in (self.member_id, self.replacement_member_id) if id is not None}


@dataclass(frozen=True, slots=True)
class OpenOperation(OperationTarget):
    """An operation that has not ended, as its instance lists it."""

    id: str
    kind: str
    queued: bool


@dataclass(frozen=True, slots=True)
class LastOperation(Record):
    """The newest operation on a whole instance, as the instance names it."""

    id: str
    kind: str
    state: OperationState


@dataclass(frozen=True, slots=True)
class PreviousDesire(Record):
    """The desired state of an instance before an operation changed it."""

    desired_state: DesiredState
    inputs: JsonObject
    app_version_id: str
    ready_since: int


@dataclass(frozen=True, slots=True)
class OperationRecord(OpenOperation):
    """An operation by itself, as every change of it returns it."""

    instance_id: str | None
    """None for a preflight, which is about no instance."""
    preflight_id: str | None
    gate_preflight_id: str | None
    """The preflight that it waits for, or waited for, before it began."""
    bulk_id: str | None
    project_id: str
    app_slug: str
    input: JsonObject
    state: OperationState
    number: int
    """The order in which the operations of an instance were requested."""
    attempt: int
    deadline: datetime
    deadline_seconds: int | None
    cancel_requested: bool
    expiry_noticed: bool
    undo: PreviousDesire | None
    """Restored if the operation is cancelled before anybody claimed it."""
    error: OperationError | None
    result: JsonObject
    lease_holder: str | None
    lease_account_id: str | None
    lease_expires_at: datetime | None
    fencing_token: int | None
    requested_by: str
    correlation_id: str
    started_at: datetime | None
    ended_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class OperationView(OperationRecord):
    """An operation with its tenant, the state of its members, and its place among the others."""

    tenant_id: str
    operator_account_id: str | None
    """The only account that may work on it; of a preflight before a deploy, the one that the deploy names."""
    preflight_instance_id: str | None
    """Of a preflight: the instance that it is about, if that is there already."""
    lease_live: bool | None
    """None where nobody holds the lease."""
    overdue: bool
    member_status: MemberStatus | None
    component_key: str | None
    """Of its member."""
    replacement_status: MemberStatus | None
    is_latest: bool
    """No later operation took over its target."""
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperationReference(Record):
    """An operation that was found without its lock."""

    id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class NewOperation:
    id: str
    kind: str
    input: JsonObject
    deadline_seconds: int
    member_id: str | None = None
    replacement_member_id: str | None = None
    bulk_id: str | None = None
    queued: bool = False
    undo: PreviousDesire | None = None
    gate_preflight_id: str | None = None


@dataclass(frozen=True, slots=True)
class StepRecord(Record):
    operation_id: str
    attempt: int
    key: str
    title: str
    status: StepStatus
    message: str
    evidence: JsonObject
    commands: tuple[RemoteCommand, ...]
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoredPolicy(Record):
    """A policy of the contract as one object: by its name, or by its number."""

    name: Policy | None = None
    at_least: int | None = None

    @property
    def policy(self) -> BulkPolicy:
        return self.name if self.name is not None else AtLeast.model_validate({"at_least": self.at_least})


def policy_document(policy: BulkPolicy) -> JsonObject:
    return {"at_least": policy.at_least} if isinstance(policy, AtLeast) else {"name": policy.value}


@dataclass(frozen=True, slots=True)
class BulkRecord(Record):
    """A bulk operation by itself, as every change of it returns it."""

    id: str
    instance_id: str
    project_id: str
    kind: str
    policy: StoredPolicy
    results: tuple[BulkResult, ...]
    """In the order of the request, without the states of their operations."""
    requested_by: str
    correlation_id: str
    ended_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class BulkView(BulkRecord):
    """A bulk operation with its tenant, its app, and how far its operations are."""

    tenant_id: str
    app_slug: str
    states: dict[str, str]
    """Of its operations, by their ids."""


@dataclass(frozen=True, slots=True)
class OperationFilter:
    project_ids: list[str] | None = None
    instance_id: str | None = None
    member_id: str | None = None
    state: str | None = None
    app_slug: str | None = None
    claimable_by: str | None = None
    """The account of a controller: only those that nobody holds, whose turn has come, and that no other account is the
    operator of."""


@dataclass(frozen=True, slots=True)
class ReceiptOwner(Record):
    """An instance that has ended, with the names that its receipt says."""

    id: str
    name: str
    app_slug: str
    app_version: str
    project_id: str
    project_name: str
    tenant_id: str
    tenant_name: str
    unverified: Unverified | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class ReceiptMember(Record):
    id: str
    component_key: str
    allocation_id: str
    last_operation_id: str | None
    unverified: Unverified | None
    removed_before: bool
    """By a removal of its own, which succeeded."""


@dataclass(frozen=True, slots=True)
class PlatformCheck(Record):
    """Facts of the platform itself about an instance that has ended."""

    check: str
    question: str
    found: str
    ok: bool | None


@dataclass(frozen=True, slots=True)
class ReceiptRecord(Record):
    subject_id: str
    """The instance, or the member that was written off."""
    document: JsonObject
    correlation_id: str
    key_id: str | None
    signature: str | None
    created_at: datetime
    signed_at: datetime | None


@dataclass(frozen=True, slots=True)
class UnsignedReceipt(Record):
    """A receipt whose audit entry is below a checkpoint: it can be signed."""

    subject_id: str
    document: JsonObject
    chain: str
    entry_id: str
    position: int
    batch: int
