"""The people of a machine: told to it as a whole, and what it says about that."""

from gpuaas_contract.agent_link import MachineUser, SetUsers
from gpuaas_contract.events import GrantEvent
from gpuaas_contract.grants import GrantStatus
from gpuaas_platform.access.records import GrantRecord
from gpuaas_platform.access.storage import grants as store
from gpuaas_platform.accounts.storage import ssh_keys as key_store
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.nodes import storage as node_store


async def order_users(tx: Transaction, allocation: AllocationRecord) -> None:
    """Tell the machine of all its people, and supersede undelivered tasks. The caller holds the allocation's lock."""
    grants = await store.list_live(tx, allocation.id)
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
                principal=grant.id,
                public_keys=keys[grant.user_id],
            )
            for grant in grants
        ],
    )
    await node_store.cancel_tasks(tx, allocation.id, kind=spec.kind)
    task_id = await node_store.order(tx, allocation, spec)
    await store.wait_for_task(tx, allocation.id, task_id)


async def users_set(tx: Transaction, task_id: str, ok: bool, message: str) -> None:
    for grant in await store.list_of_task(tx, task_id):
        match grant.status, ok:
            case GrantStatus.PENDING | GrantStatus.FAILED, True:
                await _settle(tx, grant, GrantStatus.ACTIVE, "")
            case GrantStatus.PENDING, False:
                await _settle(tx, grant, GrantStatus.FAILED, message)
            case GrantStatus.REVOKING, True:
                await _settle(tx, grant, GrantStatus.REVOKED, grant.reason)
            case GrantStatus.REVOKING, False:
                await _settle(tx, grant, GrantStatus.REVOKING, f"the machine still has the user: {message}")


async def _settle(tx: Transaction, grant: GrantRecord, status: GrantStatus, reason: str) -> None:
    if (grant.status, grant.reason) != (status, reason):
        await tx.changed(GrantEvent(status), await store.set_status(tx, grant.id, status, reason))
