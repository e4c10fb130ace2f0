"""App instances and their members."""

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from gpuaas_contract.base import JsonObject, Key, Message, Name, OwnedResource, Page, Request, Resource
from gpuaas_contract.problems import AllowedAction
from gpuaas_contract.reconcile import ReconcileLease


class InstanceStatus(StrEnum):
    """Derived from desired state, conditions and operations; never written by hand."""

    DEPLOYING = "deploying"
    STARTING = "starting"
    RUNNING = "running"
    UPDATING = "updating"
    """Usable, and another version, other inputs or a restart are under way."""
    UNKNOWN = "unknown"
    """Deployed, and its controller cannot tell now whether it is well."""
    DEGRADED = "degraded"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DECOMMISSIONING = "decommissioning"
    DECOMMISSIONED = "decommissioned"


class DesiredState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    DECOMMISSIONED = "decommissioned"


class MemberStatus(StrEnum):
    PENDING = "pending"
    CONFIGURING = "configuring"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPED = "stopped"
    REMOVING = "removing"
    REMOVED = "removed"
    """A tombstone: it stays with its history, and its machine is free."""
    FAILED = "failed"


class ConditionStatus(StrEnum):
    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


class Condition(Resource):
    type: str = Field(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$")
    status: ConditionStatus
    reason: str = Field(default="", max_length=100)
    message: Message = ""
    observed_generation: int
    changed_at: AwareDatetime | None = None


AccountId = Annotated[str, StringConstraints(pattern=r"^sva_[0-9a-z]{26}$")]
"""The id of a service account."""


class ChosenAccess(Request):
    credential_id: str
    """An access credential of the project: the controller logs in with its key, instead of a certificate."""


class Placement(Request):
    component_key: Key
    allocation_id: str
    access: ChosenAccess | None = None
    """For this machine; where absent, that of the instance."""


class InstanceDeploy(Request):
    project_id: str
    app_slug: Name
    version: str | None = None
    """The newest published version where absent."""
    name: Name
    mode: Key | None = None
    """One of the app's modes; where absent, the app's default mode, or the first that fits where that does not."""
    inputs: JsonObject = {}
    access: ChosenAccess | None = None
    """How its controller gets into all of its machines; by certificates of the platform where absent. External machines
    have a credential of their own."""
    placement_intent: list[Placement] = Field(min_length=1, max_length=1_000)
    operator_account_id: AccountId | None = None
    """The one service account of the app that works on this instance; where absent, any that the project has."""
    skip_preflight: bool = False
    """Begin without the app's own checks of the machines, which are the first step otherwise."""


class InstanceUpdate(Request):
    """A change of an instance that needs no work on its machines."""

    NULL_SAYS: ClassVar[frozenset[str]] = frozenset({"operator_account_id"})

    mode: Key | None = None
    """Another of the app's modes, which its members and machines fit as they are."""
    operator_account_id: AccountId | None = None
    """The service account that works on the instance from now on; null: any of the app that the project has."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("name what is to be changed: mode or operator_account_id")
        if "mode" in self.model_fields_set and self.mode is None:
            raise ValueError("mode is the name of a mode")
        return self


class Versions(Resource):
    """Three labels that may differ: the app's, what the catalogue expects, what the software reports."""

    app: str
    expected_runtime: str
    observed_runtime: str | None = None
    app_status: str = "published"
    """`deprecated` or `retired` where the publisher said so; `app_status_reason` says why."""
    app_status_reason: str = ""


class AccessNote(Resource):
    title: str = Field(max_length=200)
    command: str = Field(default="", max_length=2_000)
    text: Message = ""


class Unverified(Resource):
    """A member or instance that was written off without proof that it is gone."""

    reason: str
    """In the words of whoever wrote it off."""
    by: str
    at: AwareDatetime
    operation_id: str
    """The teardown that failed; its error and result say what was not verified."""
    detail: str = ""


class OperatorState(StrEnum):
    CONNECTED = "connected"
    AWAY = "away"
    """Nothing was heard of its controller within a minute."""
    DISABLED = "disabled"
    DELETED = "deleted"


class InstanceOperator(Resource):
    """The one service account that works on an instance, as it is now."""

    account_id: str
    name: str | None = None
    """None where the account was deleted."""
    state: OperatorState
    seen_at: AwareDatetime | None = None
    message: str = ""
    """Why nothing happens, and what to do; empty where its controller is connected."""


class Instance(OwnedResource):
    project_id: str
    app_slug: str
    app_version_id: str
    name: str
    mode: str | None = None
    inputs: JsonObject
    placement_intent: list[Placement]
    desired_state: DesiredState
    generation: int
    status: InstanceStatus
    reason: str = ""
    """Why it failed or is degraded: the words of the newest operation that failed; empty when all is well."""
    conditions: list[Condition] = []
    versions: Versions
    access_notes: list[AccessNote] = []
    access_credential_id: str | None = None
    """Chosen at its deploy; None: certificates of the platform."""
    operator_account_id: str | None = None
    """The only service account that may work on it; None: any of the app that the project has."""
    operator: InstanceOperator | None = None
    """That account as it is now."""
    reconcile_lease: ReconcileLease | None = None
    """Who looks after it now, for its health and drift."""
    unverified: Unverified | None = None
    correlation_id: str
    allowed_actions: list[AllowedAction] = []


class InstancePage(Page):
    items: list[Instance]


class InstanceReport(Request):
    """A report of the app's controller about an instance, under the lease of one of its operations."""

    operation_id: str | None = None
    """None: under the reconcile lease of the instance, which is for conditions and the observed version only."""
    fencing_token: int
    conditions: list[Condition] | None = Field(default=None, max_length=20)
    access_notes: list[AccessNote] | None = Field(default=None, max_length=50)
    observed_runtime: str | None = Field(default=None, max_length=64)


class Member(OwnedResource):
    instance_id: str
    component_key: str
    allocation_id: str
    node_id: str | None = None
    status: MemberStatus
    conditions: list[Condition] = []
    observed_runtime: str | None = None
    access_credential_id: str | None = None
    """Chosen for its machine; None: as for the instance."""
    adapter_detail: JsonObject = {}
    replaces_member_id: str | None = None
    """The member whose place it takes or took."""
    last_operation_id: str | None = None
    unverified: Unverified | None = None
    correlation_id: str
    allowed_actions: list[AllowedAction] = []


class MemberPage(Page):
    items: list[Member]


class MemberReport(Request):
    operation_id: str | None = None
    """None: under the reconcile lease of the instance, which does not change a member's status."""
    fencing_token: int
    status: MemberStatus | None = None
    conditions: list[Condition] | None = Field(default=None, max_length=20)
    adapter_detail: JsonObject | None = None
    observed_runtime: str | None = Field(default=None, max_length=64)


class WriteOff(Request):
    """Give up on the proof that something is gone, and say why."""

    reason: str = Field(min_length=1, max_length=1_000, pattern=r"^[^\x00]*\S[^\x00]*$")
