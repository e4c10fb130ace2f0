"""Grants: a person has a user of their own on one machine, with sudo or without, until it is revoked or expires."""

from enum import StrEnum

from pydantic import AwareDatetime, Field, model_validator

from gpuaas_contract.base import OwnedResource, Page, Request

FIRST_UID = 10_001
LAST_UID = 59_999
"""One number for each person on all machines; 10000 is the machines' own."""


class GrantStatus(StrEnum):
    PENDING = "pending"
    """The machine has not been told yet, or does not have the user yet."""
    ACTIVE = "active"
    FAILED = "failed"
    """The machine could not make the user; `reason` says why. Revoke it, or wait: it is tried again with the next."""
    REVOKING = "revoking"
    """No longer valid; the machine still has to remove the user."""
    REVOKED = "revoked"


LIVE_STATUSES = (GrantStatus.PENDING, GrantStatus.ACTIVE, GrantStatus.FAILED)


class GrantCreate(Request):
    """A grant to a person with a role in the machine's tenant, named by id or by e-mail address."""

    user_id: str | None = Field(default=None, max_length=64)
    email: str | None = Field(default=None, max_length=320)
    sudo: bool = False
    remote_forwarding: bool = False
    """Let sshd listen on the machine for the person (`ssh -R`), which leads out of the machine's network."""
    expires_at: AwareDatetime | None = None

    @model_validator(mode="after")
    def _one_person(self) -> "GrantCreate":
        if (self.user_id is None) == (self.email is None):
            raise ValueError("name the person by user_id or by email")
        return self


class Grant(OwnedResource):
    allocation_id: str
    allocation_name: str
    tenant_id: str
    project_id: str | None
    user_id: str
    email: str
    login: str
    """The person's user on the machine."""
    uid: int
    sudo: bool
    remote_forwarding: bool
    expires_at: AwareDatetime | None
    status: GrantStatus
    reason: str
    granted_by: str
    instance_id: str | None
    """The instance that the platform made it for, and ends it with; none for one that somebody gave."""
    account_only: bool
    """The machine knows the person's name and number, and lets them not in."""
    ended_at: AwareDatetime | None


class GrantPage(Page):
    items: list[Grant]
