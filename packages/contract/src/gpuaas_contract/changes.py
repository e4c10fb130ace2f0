"""The change feed: which resource changed, in one order for all readers."""

from enum import StrEnum

from pydantic import AwareDatetime

from gpuaas_contract.base import Resource

EVENT_STREAM = "text/event-stream"
"""Ask for this media type to get the feed as server-sent events."""
START = "start"
"""As `since`: everything that the feed still holds."""
CHANGE_EVENT = "change"
"""A server-sent event whose data is a `Change`, and whose id is the cursor behind it."""
END_EVENT = "end"
"""The last server-sent event of a stream; its data is a `Problem` that says why."""


class Noun(StrEnum):
    """What changes are about. Readers ignore nouns that they do not know yet."""

    TENANT = "tenant"
    PROJECT = "project"
    USER = "user"
    MEMBERSHIP = "membership"
    SERVICE_ACCOUNT = "service_account"
    NODE = "node"
    JOIN_TOKEN = "join_token"  # noqa: S105 - a noun, not a secret
    ALLOCATION = "allocation"
    APP_VERSION = "app_version"
    ENTITLEMENT = "entitlement"
    ARTIFACT = "artifact"
    TRUSTED_KEY = "trusted_key"
    INSTANCE = "instance"
    MEMBER = "member"
    OPERATION = "operation"
    RECONCILE_LEASE = "reconcile_lease"
    """Named by its instance."""
    PREFLIGHT = "preflight"
    APP_USAGE = "app_usage"
    """A report of usage, named by its instance."""
    BULK = "bulk"
    DELIVERY = "delivery"
    QUOTA = "quota"
    VOLUME = "volume"
    CREDENTIAL = "credential"
    SECRET = "secret"  # noqa: S105 - a noun, not a secret
    GRANT = "grant"
    SSH_KEY = "ssh_key"
    SSH_AUTHORITY = "ssh_authority"


class Change(Resource):
    noun: str
    """For example `operation`, `allocation`, `instance`."""
    resource_id: str
    event: str
    """What happened, in the past tense: `created`, `claimed`, `step_reported`, …"""
    message: str = ""
    revision: int
    tenant_id: str | None = None
    project_id: str | None = None
    instance_id: str | None = None
    correlation_id: str
    at: AwareDatetime


class ChangePage(Resource):
    items: list[Change]
    next_cursor: str
    """Pass it as `since` to go on from here; it is returned also when there was nothing."""
