"""Changing the SSH authority of a project or tenant for another, with both valid meanwhile."""

from gpuaas_contract import ids
from gpuaas_contract.agent_link import RenewTrust
from gpuaas_contract.events import SshAuthorityEvent
from gpuaas_contract.nodes import NodeStatus
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import AllowedAction, Code
from gpuaas_contract.ssh_authorities import (
    AuthorityRetire,
    AuthorityState,
    AuthorityVersion,
    SshAuthority,
    WaitingMachine,
)
from gpuaas_platform.access.records import (
    AuthorityOwner,
    AuthorityRecord,
    AuthorityVersionRecord,
    KeyState,
    UninformedMachine,
)
from gpuaas_platform.access.rules.ssh_keys import read_public_key
from gpuaas_platform.access.service.authorities import Authorities
from gpuaas_platform.access.storage import authorities as store
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.tenants import require_project
from gpuaas_platform.identity.storage import tenants as identity_store
from gpuaas_platform.nodes import storage as node_store
from gpuaas_platform.nodes.storage import order

NOUN = "ssh_authority"
_ASK_AGAIN = 0.05
"""Where a machine could not renew its host certificate, it is asked again after this part of a certificate's life."""


async def _require_owner(tx: Transaction, caller: Caller, owner_id: str, permission: Permission) -> AuthorityOwner:
    """Its tenant and, where it is a project, itself."""
    if not ids.is_id(owner_id, ids.TENANT):
        project = await require_project(tx, caller, owner_id, permission)
        return AuthorityOwner(owner_id=owner_id, tenant_id=project.tenant_id, project_id=owner_id)
    if await identity_store.get_tenant(tx, owner_id) is None:
        raise not_found("tenant", owner_id)
    caller.require(permission, Scope(tenant_id=owner_id), "tenant", owner_id)
    return AuthorityOwner(owner_id=owner_id, tenant_id=owner_id, project_id=None)


async def _shown(tx: Transaction, owner: AuthorityOwner) -> SshAuthority:
    rows = await store.list_all(tx, owner.owner_id)
    waiting = []
    if active := [row.version for row in rows if row.state == KeyState.ACTIVE]:
        waiting = await store.list_waiting(tx, owner.owner_id, active[0], active[-1])
    return to_wire(
        SshAuthority,
        owner,
        versions=[to_wire(AuthorityVersion, row, state=_state(row)) for row in rows],
        waiting=[WaitingMachine(allocation_id=row.id, name=row.name, reason=_why_waiting(row)) for row in waiting],
    )


def _state(row: AuthorityVersionRecord) -> AuthorityState:
    return AuthorityState.ACTIVE if row.state == KeyState.ACTIVE else AuthorityState.RETIRED


def _why_waiting(row: UninformedMachine) -> str:
    if row.node_status == NodeStatus.OFFLINE:
        return f"its node {row.node_name} is offline"
    return "it is being told"


async def get_authority(tx: Transaction, caller: Caller, owner_id: str) -> SshAuthority:
    return await _shown(tx, await _require_owner(tx, caller, owner_id, Permission.SSH_AUTHORITY_READ))


async def _tell(tx: Transaction, owner: AuthorityOwner, event: SshAuthorityEvent, version: int) -> None:
    """There is no revision of the whole: versions only grow, and each is retired once."""
    versions = await store.list_all(tx, owner.owner_id)
    retired = sum(row.state != KeyState.ACTIVE for row in versions)
    row = AuthorityRecord(
        id=owner.owner_id,
        tenant_id=owner.tenant_id,
        project_id=owner.project_id,
        revision=len(versions) + retired,
    )
    await tx.changed(event, row)
    await tx.audit(
        f"{NOUN}.{event.removesuffix('d')}",
        owner.owner_id,
        tenant_id=owner.tenant_id,
        project_id=owner.project_id,
        detail={"version": version},
    )


class RotateAuthority:
    """An outside effect: one more key, which all machines are told to trust beside the one before it."""

    def __init__(self, authorities: Authorities, caller: Caller, owner_id: str) -> None:
        self._authorities = authorities
        self._caller = caller
        self._owner_id = owner_id

    async def intend(self, tx: Transaction) -> SshAuthority | None:
        self._owner = await _require_owner(tx, self._caller, self._owner_id, Permission.SSH_AUTHORITY_MANAGE)
        rows = await store.lock(tx, self._owner_id)
        active = [row for row in rows if row.state == KeyState.ACTIVE]
        if len(active) > 1:
            raise Refusal(
                Code.INVALID_STATE,
                f"version {active[0].version} is still valid beside version {active[1].version}; retire it first",
                allowed_actions=[_retire_action(self._owner_id)],
            )
        newest = max((row.version for row in rows if row.state != KeyState.MAKING), default=0)
        # Nobody has used the first one yet: then it is made now, and there is nothing to take the place of.
        self._version = newest + 1
        await store.insert(tx, self._owner_id, self._version, KeyState.MAKING, "", "")
        return None

    async def act(self) -> None:
        self._key = read_public_key(await self._authorities.make(self._owner_id, self._version))

    async def finish(self, tx: Transaction) -> SshAuthority:
        await store.lock(tx, self._owner_id)
        await store.activate(tx, self._owner_id, self._version, self._key.public_key, self._key.fingerprint)
        await _order_all(tx, self._owner_id)
        await _tell(tx, self._owner, SshAuthorityEvent.ROTATED, self._version)
        return await _shown(tx, self._owner)

    async def abandon(self, tx: Transaction) -> None:
        await store.abandon(tx, self._owner_id, self._version)


def _retire_action(owner_id: str) -> AllowedAction:
    return Offer.RETIRE_SSH_AUTHORITY.action("retire", "Retire the old one", owner_id=owner_id)


async def retire_authority(tx: Transaction, caller: Caller, owner_id: str, body: AuthorityRetire) -> SshAuthority:
    owner = await _require_owner(tx, caller, owner_id, Permission.SSH_AUTHORITY_MANAGE)
    active = [row for row in await store.lock(tx, owner_id) if row.state == KeyState.ACTIVE]
    if len(active) < 2:
        raise Refusal(Code.INVALID_STATE, "there is one version only; rotate first, then retire the old one")
    old, new = active[0].version, active[-1].version
    waiting = await store.list_waiting(tx, owner_id, old, new)
    if waiting and not body.force:
        listed = ", ".join(f"{row.name} ({_why_waiting(row)})" for row in waiting)
        detail = (
            f"these machines do not trust version {new} yet: {listed}. Wait for them, or retire with force: "
            "nobody gets in there then until they have heard of it"
        )
        raise Refusal(Code.INVALID_STATE, detail, context={"allocation_ids": [row.id for row in waiting]})
    await store.set_state(tx, owner_id, old, KeyState.RETIRING)
    await _order_all(tx, owner_id)
    await _tell(tx, owner, SshAuthorityEvent.RETIRED, old)
    return await _shown(tx, owner)


async def _order_all(tx: Transaction, owner_id: str) -> None:
    for machine in await store.list_machines(tx, owner_id):
        await _order(tx, machine)


async def _order(tx: Transaction, machine: AllocationRecord) -> None:
    active = [row.version for row in await store.list_active(tx, machine.owner_id)]
    if not active:
        return
    spec = RenewTrust(allocation_id=machine.id, oldest=active[0], newest=active[-1])
    await node_store.cancel_tasks(tx, machine.id, kind=spec.kind)
    await order(tx, machine, spec)


async def renew_due(tx: Transaction, host_seconds: int) -> None:
    """Have machines whose host certificate is past half of its life get another. A node that is away hears of it when
    it is back, however long that takes."""
    for machine in await store.list_due(tx, host_seconds * _ASK_AGAIN):
        await _order(tx, machine)


async def catch_up(tx: Transaction, machine: AllocationRecord) -> None:
    """A machine that was being made while the authority changed."""
    active = [row.version for row in await store.list_active(tx, machine.owner_id)]
    if active and (machine.authority_oldest, machine.authority_newest) != (active[0], active[-1]):
        await _order(tx, machine)


async def trust_renewed(tx: Transaction, spec: RenewTrust, ok: bool) -> None:
    machine = await allocation_store.get(tx, spec.allocation_id)
    if ok and machine is not None:
        await store.set_known(tx, spec.allocation_id, spec.oldest, spec.newest)
