"""Grants: given, looked at, ended. A right of its own, beside the roles that people have."""

from collections.abc import Mapping
from datetime import UTC, datetime

from gpuaas_contract import ids
from gpuaas_contract.agent_link import MachineAccount, MachineGroup, MachineUser, SetUsers
from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.events import GrantEvent, InstanceEvent
from gpuaas_contract.grants import LIVE_STATUSES, Grant, GrantCreate, GrantPage, GrantStatus
from gpuaas_contract.people import LEAVING_SECONDS
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.access.records import GrantRecord, GrantView
from gpuaas_platform.access.service.streams import require_active
from gpuaas_platform.access.service.unix_names import ensure_unix_user
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.access.storage import grants as store
from gpuaas_platform.access.storage import people as people_store
from gpuaas_platform.accounts.records import UserRecord
from gpuaas_platform.accounts.storage import ssh_keys as key_store
from gpuaas_platform.accounts.storage import users as user_store
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.rules.allocations import require_allocation
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.nodes import storage as node_store

NOUN = "grant"
ASK_AGAIN_SECONDS = 30


async def order_users(tx: Transaction, allocation: AllocationRecord) -> None:
    """Tell the machine of all its people, and supersede undelivered tasks. The caller holds the allocation's lock."""
    live = await store.list_live(tx, allocation.id)
    grants = [grant for grant in live if not grant.account_only]
    known = {grant.user_id for grant in live}
    leaving = [grant for grant in await store.list_leaving(tx, allocation.id) if grant.user_id not in known]
    accounts = {grant.login: grant.uid for grant in live if grant.account_only}
    keys: dict[str, list[str]] = {grant.user_id: [] for grant in grants}
    for key in await key_store.list_of_users(tx, list(keys)):
        keys[key.user_id].append(key.public_key)
    spec = SetUsers(
        allocation_id=allocation.id,
        users=[
            MachineUser(
                login=grant.login,
                uid=grant.uid,
                sudo=grant.sudo,
                remote_forwarding=grant.remote_forwarding,
                principal=grant.id,
                public_keys=keys[grant.user_id],
            )
            for grant in grants
        ],
        temporary=[grant.login for grant in grants if grant.instance_id is not None],
        accounts=[
            *(MachineAccount(login=login, uid=uid) for login, uid in accounts.items()),
            *(
                MachineAccount(login=login, uid=uid, leaving=True)
                for login, uid in {g.login: g.uid for g in leaving}.items()
            ),
        ],
        groups=[
            MachineGroup(name=group.name, gid=group.gid, logins=[*group.logins])
            for group in await people_store.list_groups(tx, allocation.id)
        ],
    )
    await node_store.cancel_tasks(tx, allocation.id, kind=spec.kind)
    task_id = await node_store.order(tx, allocation, spec)
    await store.wait_for_task(tx, allocation.id, task_id)


async def users_set(tx: Transaction, task_id: str, ok: bool, message: str, refused: Mapping[str, str] = {}) -> None:
    """Settle what the machine was told. Where it names whom it refused, it has done the rest."""
    rows = await store.list_of_task(tx, task_id)
    for grant in rows:
        reason = refused.get(grant.login, "") if refused else message
        match grant.status, ok or not reason:
            case GrantStatus.PENDING | GrantStatus.FAILED, True:
                await _settle(tx, grant, GrantStatus.ACTIVE, "")
            case GrantStatus.PENDING, False:
                await _settle(tx, grant, GrantStatus.FAILED, reason)
            case GrantStatus.REVOKING, True if not grant.is_leaving:
                await _settle(tx, grant, GrantStatus.REVOKED, grant.reason)
            case GrantStatus.REVOKING, False:
                await _settle(tx, grant, GrantStatus.REVOKING, f"the machine still has the user: {reason}")
    if rows:
        await _tell_instances(tx, rows)


async def _tell_instances(tx: Transaction, rows: list[GrantRecord]) -> None:
    """Say it to the instance that the machine carries, too: its app waits until the machine has a person."""
    users = [row.user_id for row in rows]
    for instance_id in await people_store.list_instances(tx, rows[0].allocation_id, users):
        instance = await people_store.touch(tx, instance_id)
        message = f"the machine was told of {len(users)} people"
        scope = {"project_id": instance.project_id, "instance_id": instance_id}
        await tx.changed(InstanceEvent.PEOPLE_CHANGED, instance, message=message, **scope)


async def _settle(tx: Transaction, grant: GrantRecord, status: GrantStatus, reason: str) -> None:
    if (grant.status, grant.reason) != (status, reason):
        await tx.changed(GrantEvent(status), await store.set_status(tx, grant.id, status, reason))


async def tell(tx: Transaction, row: GrantRecord, event: GrantEvent, action: str, **detail: object) -> None:
    await tx.changed(event, row)
    await tx.audit(
        f"{NOUN}.{action}",
        row.id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        detail={"allocation_id": row.allocation_id, **detail},
    )


async def end(tx: Transaction, row: GrantRecord, reason: str) -> None:
    """From the end of this transaction on it gives nothing; what the machine has of it goes with the next order."""
    ended = await store.set_status(tx, row.id, GrantStatus.REVOKING, reason, ended=True)
    if await people_store.list_instances(tx, row.allocation_id, [row.user_id]):
        ended = await store.let_leave(tx, row.id, LEAVING_SECONDS)
    await access_store.end_of_grant(tx, row.id)
    await tell(tx, ended, GrantEvent.REVOKED, "revoke", user_id=row.user_id, reason=reason)


async def order_where_active(tx: Transaction, allocation: AllocationRecord) -> None:
    if allocation.status == AllocationStatus.ACTIVE:
        await order_users(tx, allocation)


async def end_of_user(
    tx: Transaction, user_id: str, reason: str, *, project_id: str | None = None, tenant_id: str | None = None
) -> None:
    """All that somebody has, or all of a project or tenant."""
    for row in await store.list_live_of_user(tx, user_id, project_id=project_id, tenant_id=tenant_id):
        allocation = await allocation_store.lock(tx, row.allocation_id)
        assert allocation is not None
        await end(tx, row, reason)
        await order_where_active(tx, allocation)


async def end_of_allocation(tx: Transaction, allocation_id: str) -> None:
    """The machine goes, and all that it had with it."""
    for row in await store.list_live(tx, allocation_id):
        await end(tx, row, "the machine was released")
        await store.set_status(tx, row.id, GrantStatus.REVOKED, "the machine was released")


async def sweep(tx: Transaction) -> None:
    """End what has expired, and ask machines again that could not remove somebody."""
    for row in await store.list_expired(tx):
        allocation = await allocation_store.lock(tx, row.allocation_id)
        again = await store.get(tx, row.id)
        assert allocation is not None
        if again is not None and again.status in LIVE_STATUSES:
            await end(tx, again, "it expired")
            await order_where_active(tx, allocation)
    for allocation_id in await store.list_stuck(tx, ASK_AGAIN_SECONDS):
        allocation = await allocation_store.lock(tx, allocation_id)
        assert allocation is not None
        await order_where_active(tx, allocation)
    for allocation_id in await store.list_left(tx):
        allocation = await allocation_store.lock(tx, allocation_id)
        assert allocation is not None
        await store.end_leaving(tx, allocation_id)
        await order_where_active(tx, allocation)


async def create_grant(tx: Transaction, caller: Caller, allocation_id: str, body: GrantCreate) -> Grant:
    allocation = require_allocation(
        await allocation_store.lock(tx, allocation_id), allocation_id, caller, Permission.GRANT_MANAGE
    )
    shapes.require_support(allocation, "access")
    require_active(allocation)
    if body.expires_at is not None and body.expires_at <= datetime.now(UTC):
        detail = "expires_at has passed already"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/expires_at", detail=detail)])
    user = await _find_person(tx, body, allocation.tenant_id)
    await _end_expired(tx, allocation_id, user.id)
    await _replace_made(tx, allocation_id, user.id)
    unix = await ensure_unix_user(tx, user)
    row = await store.insert(
        tx,
        ids.new_id(ids.GRANT),
        allocation,
        user.id,
        user.email,
        unix,
        sudo=body.sudo,
        remote_forwarding=body.remote_forwarding,
        expires_at=body.expires_at,
    )
    if row is None:
        detail = f"{user.email} has a grant on {allocation.name} already; revoke it first to change it"
        raise Refusal(Code.NAME_TAKEN, detail)
    rights = {"sudo": row.sudo, "remote_forwarding": row.remote_forwarding}
    await tell(tx, row, GrantEvent.CREATED, "create", user_id=user.id, login=row.login, **rights)
    await order_users(tx, allocation)
    return to_wire(Grant, row)


async def _find_person(tx: Transaction, body: GrantCreate, tenant_id: str) -> UserRecord:
    """Who has no role in the tenant is not known in it."""
    if body.user_id is not None:
        user = await user_store.get(tx, body.user_id)
    else:
        assert body.email is not None
        user = await user_store.get_by_email(tx, body.email.strip().lower())
    if user is None or not await store.has_role_in(tx, user.id, tenant_id):
        raise not_found("user", body.user_id or body.email or "")
    if user.disabled:
        raise Refusal(Code.INVALID_STATE, f"{user.email} is disabled")
    return user


async def _end_expired(tx: Transaction, allocation_id: str, user_id: str) -> None:
    """One that nobody has swept yet does not stand in the way of the next."""
    for row in await store.list_live(tx, allocation_id):
        if row.user_id == user_id and row.expires_at is not None and row.expires_at <= datetime.now(UTC):
            await end(tx, row, "it expired")


async def _replace_made(tx: Transaction, allocation_id: str, user_id: str) -> None:
    """A grant of one's own takes the place of the one that the platform made for an instance."""
    for row in await store.list_live(tx, allocation_id):
        if row.user_id == user_id and row.instance_id is not None:
            await replace_made(tx, row, "the person has a grant of their own")


async def replace_made(tx: Transaction, row: GrantRecord, reason: str) -> None:
    """End it without a word to the machine: another one for the same person follows in this transaction."""
    ended = await store.set_status(tx, row.id, GrantStatus.REVOKED, reason, ended=True)
    await access_store.end_of_grant(tx, row.id)
    await tell(tx, ended, GrantEvent.REVOKED, "revoke", user_id=row.user_id, reason=reason)


async def require_grant(tx: Transaction, caller: Caller, grant_id: str, permission: Permission) -> GrantView:
    """One's own, or those of the machines that one may read or administer."""
    row = await store.get(tx, grant_id)
    if row is None:
        raise not_found(NOUN, grant_id)
    if row.user_id != caller.id:
        scope = Scope(tenant_id=row.tenant_id, project_id=row.project_id)
        if row.project_id is None and not caller.may(Permission.ALLOCATION_READ, scope):
            raise not_found(NOUN, grant_id, denied=True)
        caller.require(permission, scope, NOUN, grant_id)
    return row


async def get_grant(tx: Transaction, caller: Caller, grant_id: str) -> Grant:
    return to_wire(Grant, await require_grant(tx, caller, grant_id, Permission.ALLOCATION_READ))


async def list_grants(
    tx: Transaction, caller: Caller, allocation_id: str, user_id: str | None, cursor: str | None, limit: int
) -> GrantPage:
    require_allocation(await allocation_store.get(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_READ)
    rows = await store.list_of_allocation(tx, allocation_id, user_id, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return GrantPage(items=[to_wire(Grant, row) for row in rows], next_cursor=after)


async def list_own(tx: Transaction, caller: Caller, cursor: str | None, limit: int) -> GrantPage:
    rows, after = cut_page(await store.list_of_user(tx, caller.id, decode_cursor(cursor), limit + 1), limit)
    return GrantPage(items=[to_wire(Grant, row) for row in rows], next_cursor=after)


async def revoke_grant(tx: Transaction, caller: Caller, grant_id: str) -> Grant:
    """Those who give grants, and the person who has it. One that has ended stays as it is."""
    row = await require_grant(tx, caller, grant_id, Permission.GRANT_MANAGE)
    allocation = await allocation_store.lock(tx, row.allocation_id)
    assert allocation is not None
    row = await require_grant(tx, caller, grant_id, Permission.GRANT_MANAGE)
    tx.match(row)
    if row.instance_id is not None and row.status in LIVE_STATUSES:
        detail = (
            f"the platform made this grant for {row.instance_id}, and ends it when {row.email} is none of its people "
            "any more: remove the person from the project, or decommission the instance"
        )
        raise Refusal(Code.INVALID_STATE, detail)
    if row.status in LIVE_STATUSES:
        await end(tx, row, f"revoked by {caller.name}")
        await order_where_active(tx, allocation)
    return await get_grant(tx, caller, grant_id)
