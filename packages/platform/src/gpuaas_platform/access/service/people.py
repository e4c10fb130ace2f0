"""Access to machines for people: by a grant, or by a role that administers the machine."""

from dataclasses import dataclass
from datetime import UTC, datetime

from gpuaas_contract import ids
from gpuaas_contract.access import CERTIFICATE_SECONDS, PERSON_LOGIN, AccessGrant, PersonAccessRequest
from gpuaas_contract.grants import GrantStatus
from gpuaas_contract.identity import PrincipalKind
from gpuaas_contract.problems import Code
from gpuaas_platform.access.records import AccessGrantRecord, GrantRecord, NewAccessGrant
from gpuaas_platform.access.rules.logins import role_principal
from gpuaas_platform.access.service.authorities import Authorities, check_ssh_key
from gpuaas_platform.access.service.leases import LeaseDoors
from gpuaas_platform.access.service.streams import require_active
from gpuaas_platform.access.storage import access as store
from gpuaas_platform.access.storage import grants as grant_store
from gpuaas_platform.access.storage import leases as lease_store
from gpuaas_platform.allocations.records import AllocationView
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.rules.allocations import require_allocation
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope


class PersonAccess:
    def __init__(self, database: Database, authorities: Authorities, doors: LeaseDoors) -> None:
        self._database = database
        self._authorities = authorities
        self._doors = doors

    async def grant(
        self, caller: Caller, correlation_id: str, allocation_id: str, body: PersonAccessRequest
    ) -> AccessGrant:
        async with self._database.transaction(caller.id, correlation_id) as tx:
            machine, held = await find_right(tx, caller, allocation_id, administrator=body.administrator)
            check_ssh_key(body.public_key)
            access = await insert_access(tx, machine, held, body.lifetime_seconds)
        return await self._certify(access, machine, body.public_key, f"{caller.name}/{correlation_id}")

    async def open_terminal(
        self, caller: Caller, correlation_id: str, allocation_id: str, public_key: str
    ) -> "TerminalAccess":
        """The same right as for a certificate; the platform itself uses it, for one session."""
        async with self._database.transaction(caller.id, correlation_id) as tx:
            machine, held = await find_right(tx, caller, allocation_id)
            access = await insert_access(tx, machine, held, CERTIFICATE_SECONDS)
        grant = await self._certify(access, machine, public_key, f"{caller.name}/terminal/{correlation_id}")
        return TerminalAccess(access, machine, grant)

    async def _certify(
        self, access: AccessGrantRecord, machine: AllocationView, public_key: str, key_id: str
    ) -> AccessGrant:
        seconds = seconds_left(access)
        if access.grant_id is not None:
            return await self._authorities.certify(access, [machine], public_key, key_id, seconds)
        principal = role_principal(access.principal_id)
        answer = await self._authorities.certify(
            access, [machine], public_key, f"{principal}/{key_id}", seconds, lease_principal=principal
        )
        await self._doors.wait_until_open(principal, machine.id)
        return answer


@dataclass(frozen=True, slots=True)
class TerminalAccess:
    access: AccessGrantRecord
    machine: AllocationView
    grant: AccessGrant


async def find_right(
    tx: Transaction, caller: Caller, allocation_id: str, *, administrator: bool = False
) -> tuple[AllocationView, GrantRecord | None]:
    """The machine, and the grant that opens it; none for those who administer it and log in as its own user."""
    held = None
    if caller.kind == PrincipalKind.USER and not administrator:
        held = await grant_store.get_usable(tx, allocation_id, caller.id)
    if held is not None and held.instance_id is not None and held.status != GrantStatus.ACTIVE:
        # The machine may be what keeps the person out: who administers it gets in to look.
        held = held if not await _has_role(tx, caller, allocation_id) else None
    machine = await allocation_store.get(tx, allocation_id) if held is not None else None
    if machine is None:
        machine = await _require_role(tx, caller, allocation_id)
    shapes.require_support(machine, "access")
    require_active(machine)
    if held is not None:
        _require_applied(held)
    return machine, held


async def _has_role(tx: Transaction, caller: Caller, allocation_id: str) -> bool:
    machine = await allocation_store.get(tx, allocation_id)
    return machine is not None and caller.may(
        Permission.ALLOCATION_ACCESS, Scope(machine.tenant_id, machine.project_id)
    )


async def _require_role(tx: Transaction, caller: Caller, allocation_id: str) -> AllocationView:
    machine = require_allocation(
        await allocation_store.get(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_READ
    )
    scope = Scope(tenant_id=machine.tenant_id, project_id=machine.project_id)
    if not caller.may(Permission.ALLOCATION_ACCESS, scope):
        detail = (
            f"{caller.name} has no grant on {machine.name}; who administers the project gives one: "
            f"gpuaas grant create {machine.name} {caller.name}"
        )
        raise Refusal(Code.FORBIDDEN, detail, denied=True)
    if not await store.roles_stand(tx, caller):
        raise Refusal(Code.UNAVAILABLE, "your roles were changed just now; try again", retry_after=1)
    return machine


def _require_applied(held: GrantRecord) -> None:
    if held.status == GrantStatus.PENDING:
        raise Refusal(Code.UNAVAILABLE, "the machine is being told of your grant; try again", retry_after=1)
    if held.status == GrantStatus.FAILED:
        raise Refusal(Code.INVALID_STATE, f"the machine could not make your user: {held.reason}")


async def insert_access(
    tx: Transaction, machine: AllocationView, held: GrantRecord | None, seconds: int
) -> AccessGrantRecord:
    """For as long as was asked, and never past the end of the grant."""
    if held is not None and held.expires_at is not None:
        left = int((held.expires_at - datetime.now(UTC)).total_seconds())
        seconds = max(1, min(seconds, left))
    access = await store.insert(
        tx,
        ids.new_id(ids.ACCESS_GRANT),
        NewAccessGrant(
            project_id=machine.project_id,
            owner_id=machine.owner_id,
            allocation_ids=[machine.id],
            login=PERSON_LOGIN if held is None else held.login,
            seconds=seconds,
            grant_id=None if held is None else held.id,
        ),
    )
    if held is None:
        await lease_store.open_for_role(tx, role_principal(access.principal_id), access.login, machine.id)
    detail = {"grant": access.id, "login": access.login, "by": "role" if held is None else held.id}
    await tx.audit_owned("access.grant", machine, detail)
    return access


def seconds_left(access: AccessGrantRecord) -> int:
    return int(max(1, (access.expires_at - access.created_at).total_seconds()))
