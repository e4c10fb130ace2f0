"""People's own SSH public keys. Machines on which somebody has a grant are told of every change."""

from dataclasses import replace

from gpuaas_contract import ids
from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.events import SshKeyEvent
from gpuaas_contract.problems import Code
from gpuaas_contract.ssh_keys import MOST_KEYS, SshKey, SshKeyCreate, SshKeyPage
from gpuaas_platform.access.rules.ssh_keys import read_public_key
from gpuaas_platform.access.service.grants import order_users
from gpuaas_platform.access.storage import grants as grant_store
from gpuaas_platform.accounts.records import SshKeyRecord
from gpuaas_platform.accounts.storage import ssh_keys as store
from gpuaas_platform.accounts.storage import users as user_store
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller


async def add_key(tx: Transaction, caller: Caller, body: SshKeyCreate) -> SshKey:
    key = read_public_key(body.public_key)
    await user_store.lock(tx, caller.id)
    if await store.count(tx, caller.id) >= MOST_KEYS:
        raise Refusal(Code.KEY_LIMIT, f"nobody has more than {MOST_KEYS} keys; remove one first")
    row = await store.insert(tx, ids.new_id(ids.SSH_KEY), caller.id, body.name, key)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"you have a key named {body.name!r}, or this very key, already")
    await tx.changed(SshKeyEvent.CREATED, row)
    await tx.audit("ssh_key.add", row.id, detail={"fingerprint": key.fingerprint, "key_type": key.key_type})
    await _tell_machines(tx, caller.id)
    return to_wire(SshKey, row)


async def list_keys(tx: Transaction, caller: Caller, cursor: str | None, limit: int) -> SshKeyPage:
    rows, after = cut_page(await store.list_of_user(tx, caller.id, decode_cursor(cursor), limit + 1), limit)
    return SshKeyPage(items=[to_wire(SshKey, row) for row in rows], next_cursor=after)


async def remove_key(tx: Transaction, caller: Caller, key_id: str) -> SshKey:
    row = await store.lock(tx, key_id)
    if row is None or row.user_id != caller.id:
        raise not_found("SSH key", key_id)
    tx.match(row)
    await _delete(tx, row)
    await tx.audit("ssh_key.remove", key_id, detail={"fingerprint": row.fingerprint})
    await _tell_machines(tx, caller.id)
    return to_wire(SshKey, row)


async def _delete(tx: Transaction, row: SshKeyRecord) -> None:
    await store.delete(tx, row.id)
    await tx.changed(SshKeyEvent.DELETED, replace(row, revision=row.revision + 1))


async def delete_of_user(tx: Transaction, user_id: str) -> None:
    """With the person; their grants have ended before."""
    for row in await store.list_of_user(tx, user_id):
        await _delete(tx, row)


async def _tell_machines(tx: Transaction, user_id: str) -> None:
    for grant in await grant_store.list_live_of_user(tx, user_id):
        allocation = await allocation_store.lock(tx, grant.allocation_id)
        assert allocation is not None
        if allocation.status == AllocationStatus.ACTIVE:
            await order_users(tx, allocation)
