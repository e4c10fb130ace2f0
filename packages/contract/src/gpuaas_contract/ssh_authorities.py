"""The SSH authority of a project, or of a tenant for its own machines: looked at, and changed for another."""

from enum import StrEnum

from pydantic import AwareDatetime

from gpuaas_contract.base import Request, Resource


class AuthorityState(StrEnum):
    ACTIVE = "active"
    """Machines trust what it signed."""
    RETIRED = "retired"
    """Its key is destroyed, or about to be; machines trust it no more as soon as they hear of it."""


class AuthorityVersion(Resource):
    version: int
    state: AuthorityState
    public_key: str
    fingerprint: str
    created_at: AwareDatetime
    retired_at: AwareDatetime | None = None


class WaitingMachine(Resource):
    """A machine that has not heard of the last change yet."""

    allocation_id: str
    name: str
    reason: str


class SshAuthority(Resource):
    owner_id: str
    tenant_id: str
    project_id: str | None = None
    versions: list[AuthorityVersion]
    """Two are active while it is rotated: both are valid then."""
    waiting: list[WaitingMachine]


class AuthorityRetire(Request):
    force: bool = False
    """Also where machines have not heard of the new one yet: until they do, nobody gets in there."""
