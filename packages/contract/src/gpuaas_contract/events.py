"""The events that the change feed shows, for each noun. An event is in the past tense, or it is the new status.

The feed also shows the steps of an agent's task as events of the allocation or volume; the agent names those.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from gpuaas_contract.nouns import Noun


class Event(StrEnum):
    """The base of the events of one noun, which knows the noun."""

    noun: ClassVar[Noun]

    def __init_subclass__(cls, *, noun: Noun) -> None:
        super().__init_subclass__()
        cls.noun = noun


@dataclass(frozen=True, slots=True)
class AgentStep:
    """A step of an agent's task, shown as an event of the allocation or volume that it is about."""

    noun: Noun
    value: str


class TenantEvent(Event, noun=Noun.TENANT):
    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"


class ProjectEvent(Event, noun=Noun.PROJECT):
    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"


class UserEvent(Event, noun=Noun.USER):
    CREATED = "created"
    UPDATED = "updated"
    PASSWORD_CHANGED = "password_changed"  # noqa: S105 - an event, not a secret
    DELETED = "deleted"


class MembershipEvent(Event, noun=Noun.MEMBERSHIP):
    CREATED = "created"
    DELETED = "deleted"


class ServiceAccountEvent(Event, noun=Noun.SERVICE_ACCOUNT):
    CREATED = "created"
    ENABLED = "enabled"
    DISABLED = "disabled"
    KEY_ADDED = "key_added"
    KEY_REVOKED = "key_revoked"
    DELETED = "deleted"


class NodeEvent(Event, noun=Noun.NODE):
    ENROLLED = "enrolled"
    READY = "ready"
    IMPAIRED = "impaired"
    CORDONED = "cordoned"
    UNCORDONED = "uncordoned"
    DRAINING = "draining"
    OFFLINE = "offline"
    RETIRED = "retired"
    KEY_OFFERED = "key_offered"
    ROTATION_REQUESTED = "rotation_requested"
    IDENTITY_ROTATED = "identity_rotated"
    IDENTITY_REVOKED = "identity_revoked"
    COMPARED = "compared"
    LINK_REPLACED = "link_replaced"
    INVENTORY_REFUSED = "inventory_refused"


class JoinTokenEvent(Event, noun=Noun.JOIN_TOKEN):
    CREATED = "created"


class AllocationEvent(Event, noun=Noun.ALLOCATION):
    REQUESTED = "requested"
    WAITING = "waiting"
    PROVISIONING = "provisioning"
    ACTIVE = "active"
    FAILED = "failed"
    LOST = "lost"
    RENAMED = "renamed"
    RESTARTING = "restarting"
    RESTARTED = "restarted"
    RESTART_FAILED = "restart_failed"
    ASKING = "asking"
    RESIZING = "resizing"
    RESIZED = "resized"
    RESIZE_FAILED = "resize_failed"
    RESIZE_REFUSED = "resize_refused"
    NODE_DRAINING = "node_draining"
    VOLUME_WANTED = "volume_wanted"
    VOLUME_WAITS = "volume_waits"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    ATTACH_FAILED = "attach_failed"
    DETACHING = "detaching"
    DETACHED = "detached"
    DETACH_FAILED = "detach_failed"
    RELEASING = "releasing"
    RELEASED = "released"
    RELEASE_FAILED = "release_failed"


class AppVersionEvent(Event, noun=Noun.APP_VERSION):
    PUBLISHED = "published"
    DEPRECATED = "deprecated"
    RETIRED = "retired"


class EntitlementEvent(Event, noun=Noun.ENTITLEMENT):
    GRANTED = "granted"
    REVOKED = "revoked"


class ArtifactEvent(Event, noun=Noun.ARTIFACT):
    UPLOADED = "uploaded"
    VERIFIED = "verified"
    PROMOTED = "promoted"
    RETIRED = "retired"
    DELETED = "deleted"


class TrustedKeyEvent(Event, noun=Noun.TRUSTED_KEY):
    CREATED = "created"
    DELETED = "deleted"


class InstanceEvent(Event, noun=Noun.INSTANCE):
    CREATED = "created"
    UPDATED = "updated"
    PLACED = "placed"
    STARTING = "starting"
    STOPPING = "stopping"
    UPGRADING = "upgrading"
    CONFIGURING = "configuring"
    RESTORED = "restored"
    REPORTED = "reported"
    REPORT_REFUSED = "report_refused"
    PEOPLE_CHANGED = "people_changed"
    DECOMMISSIONING = "decommissioning"
    DECOMMISSIONED = "decommissioned"


class MemberEvent(Event, noun=Noun.MEMBER):
    CREATED = "created"
    REPORTED = "reported"
    REPORT_REFUSED = "report_refused"
    PENDING = "pending"
    CONFIGURING = "configuring"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPED = "stopped"
    REMOVING = "removing"
    REMOVED = "removed"
    FAILED = "failed"


class OperationEvent(Event, noun=Noun.OPERATION):
    QUEUED = "queued"
    REQUESTED = "requested"
    CLAIMED = "claimed"
    YIELDED = "yielded"
    LEASE_EXPIRED = "lease_expired"
    STEP_RUNNING = "step_running"
    STEP_SUCCEEDED = "step_succeeded"
    STEP_FAILED = "step_failed"
    REPORT_REFUSED = "report_refused"
    CANCEL_REQUESTED = "cancel_requested"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"


class ReconcileLeaseEvent(Event, noun=Noun.RECONCILE_LEASE):
    CLAIMED = "claimed"
    ENDED = "ended"


class PreflightEvent(Event, noun=Noun.PREFLIGHT):
    CREATED = "created"
    DONE = "done"


class AppUsageEvent(Event, noun=Noun.APP_USAGE):
    REPORTED = "reported"


class BulkEvent(Event, noun=Noun.BULK):
    REQUESTED = "requested"
    PROGRESSED = "progressed"
    ENDED = "ended"
    REOPENED = "reopened"


class DeliveryEvent(Event, noun=Noun.DELIVERY):
    REQUESTED = "requested"
    DELIVERED = "delivered"
    FAILED = "failed"


class QuotaEvent(Event, noun=Noun.QUOTA):
    SET = "set"


class VolumeEvent(Event, noun=Noun.VOLUME):
    CREATED = "created"
    WANTED = "wanted"
    VOLUME_WANTED = "volume_wanted"
    VOLUME_WAITS = "volume_waits"
    PLACED = "placed"
    READY = "ready"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    ATTACH_FAILED = "attach_failed"
    DETACHING = "detaching"
    DETACHED = "detached"
    DETACH_FAILED = "detach_failed"
    NODE_DRAINING = "node_draining"
    LOST = "lost"
    DELETING = "deleting"
    DELETED = "deleted"
    DELETE_FAILED = "delete_failed"


class CredentialEvent(Event, noun=Noun.CREDENTIAL):
    CREATED = "created"
    ROTATED = "rotated"
    VERSION_ENDED = "version_ended"
    REVOKED = "revoked"
    DELETED = "deleted"


class SecretEvent(Event, noun=Noun.SECRET):
    CREATED = "created"
    ROTATED = "rotated"
    DELETED = "deleted"


class GrantEvent(Event, noun=Noun.GRANT):
    CREATED = "created"
    ACTIVE = "active"
    FAILED = "failed"
    REVOKING = "revoking"
    REVOKED = "revoked"


class SshKeyEvent(Event, noun=Noun.SSH_KEY):
    CREATED = "created"
    DELETED = "deleted"


class SshAuthorityEvent(Event, noun=Noun.SSH_AUTHORITY):
    ROTATED = "rotated"
    RETIRED = "retired"


EVENTS: dict[Noun, type[Event]] = {events.noun: events for events in Event.__subclasses__()}
