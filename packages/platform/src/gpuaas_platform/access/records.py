"""Access grants, grants of people and SSH authorities as the database has them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from gpuaas_contract.grants import GrantStatus
from gpuaas_contract.nodes import NodeStatus
from gpuaas_contract.people import PersonRole
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class NewAccessGrant:
    """Access to be given to the principal of the transaction, and what ends it early."""

    project_id: str | None
    owner_id: str
    """Whose SSH authority signs: the project or the tenant that owns the machines."""
    allocation_ids: list[str]
    login: str
    seconds: int
    operation_id: str | None = None
    reconciled_instance_id: str | None = None
    grant_id: str | None = None
    tunnel: "TunnelPort | None" = None


@dataclass(frozen=True, slots=True)
class TunnelPort:
    """The one port of a member that a tunnel leads to."""

    member_id: str
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class AccessGrantRecord(Record):
    """Access to machines for minutes, for whoever holds a lease, a grant or a role."""

    id: str
    principal_id: str
    owner_id: str
    allocation_ids: tuple[str, ...]
    login: str
    grant_id: str | None
    """The person's grant that it was given for."""
    member_id: str | None
    """The member whose port it opens; such access opens nothing else, least of all a login."""
    expires_at: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AccessGrantView(AccessGrantRecord):
    open: bool
    """Whether it was neither ended nor has expired."""


@dataclass(frozen=True, slots=True)
class UnixUserRecord(Record):
    """A person's name and number on all machines."""

    login: str
    uid: int


@dataclass(frozen=True, slots=True)
class GrantRecord(Record):
    """A person's grant on a machine by itself, as every change of it returns it."""

    id: str
    allocation_id: str
    tenant_id: str
    project_id: str | None
    user_id: str
    email: str
    login: str
    uid: int
    sudo: bool
    remote_forwarding: bool
    expires_at: datetime | None
    status: GrantStatus
    reason: str
    granted_by: str
    instance_id: str | None
    account_only: bool
    leaving_until: datetime | None
    """Until then the machine leaves the processes of the person alone; the log-in has ended before."""
    ended_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime

    @property
    def is_leaving(self) -> bool:
        return self.leaving_until is not None and self.leaving_until > datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class GrantView(GrantRecord):
    allocation_name: str


@dataclass(frozen=True, slots=True)
class LeasePrincipalRecord(Record):
    """A principal that a machine lets in for as long as a lease lasts."""

    allocation_id: str
    principal: str
    login: str
    told: bool
    """Whether the machine's node has confirmed it on its present link."""


@dataclass(frozen=True, slots=True)
class UntoldMachine(Record):
    """A machine whose node has not confirmed a principal yet."""

    name: str
    node_name: str


@dataclass(frozen=True, slots=True)
class UnixGroupRecord(Record):
    """A project's group on all machines."""

    name: str
    gid: int


@dataclass(frozen=True, slots=True)
class MachineGroupRecord(UnixGroupRecord):
    logins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WantedPerson(Record):
    """Somebody who may use an instance now."""

    user_id: str
    email: str
    role: PersonRole
    since: datetime


@dataclass(frozen=True, slots=True)
class PersonRecord(WantedPerson):
    """Somebody who may use an instance, or left it, as the platform last said."""

    login: str
    uid: int
    left_at: datetime | None

    @property
    def id(self) -> str:
        """By which the people of one instance are listed."""
        return self.user_id


@dataclass(frozen=True, slots=True)
class WantedEntry(Record):
    """An entry that somebody is to have on a machine of an instance."""

    user_id: str
    allocation_id: str
    account_only: bool


@dataclass(frozen=True, slots=True)
class PeopledInstance(Record):
    """An instance whose people change."""

    id: str
    project_id: str
    project_name: str
    revision: int


class KeyState(StrEnum):
    MAKING = "making"
    """OpenBao is being asked for it; nobody uses it yet."""
    ACTIVE = "active"
    RETIRING = "retiring"
    """It signs nothing any more; OpenBao still has it."""
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class AuthorityVersionRecord(Record):
    """One key of an SSH authority."""

    owner_id: str
    version: int
    state: KeyState
    public_key: str
    fingerprint: str
    created_at: datetime
    retired_at: datetime | None


@dataclass(frozen=True, slots=True)
class UninformedMachine(Record):
    """A machine that does not trust exactly the active keys of its owner's authority yet."""

    id: str
    name: str
    node_name: str | None
    node_status: NodeStatus | None


@dataclass(frozen=True, slots=True)
class AuthorityOwner(Record):
    """The project or the tenant that an SSH authority belongs to."""

    owner_id: str
    tenant_id: str
    project_id: str | None


@dataclass(frozen=True, slots=True)
class AuthorityRecord(Record):
    """An SSH authority as a whole, of which no table has a row."""

    id: str
    tenant_id: str
    project_id: str | None
    revision: int
