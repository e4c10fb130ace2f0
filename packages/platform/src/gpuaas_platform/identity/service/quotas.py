"""Quotas of projects: read, set, and asked in the transaction that claims."""

from collections.abc import Mapping

from gpuaas_contract.events import QuotaEvent
from gpuaas_contract.problems import Code
from gpuaas_contract.quotas import Quota, QuotaLimits, QuotaSet, QuotaUse
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.records import ProjectUse, QuotaRecord
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.tenants import require_project
from gpuaas_platform.identity.storage import quotas as store
from gpuaas_platform.identity.storage import tenants as identity_store

_WORDS = {
    "cpus": "CPUs",
    "memory_mib": "MiB of memory",
    "disk_gib": "GiB of disk",
    "gpus": "GPUs",
    "allocations": "allocations",
}


async def _to_model(tx: Transaction, quota: QuotaRecord) -> Quota:
    used = to_wire(QuotaUse, await store.used(tx, quota.id))
    return Quota(project_id=quota.id, revision=quota.revision, limits=to_wire(QuotaLimits, quota), used=used)


async def get_quota(tx: Transaction, caller: Caller, project_id: str) -> Quota:
    await require_project(tx, caller, project_id, Permission.QUOTA_READ)
    return await _to_model(tx, await store.get(tx, project_id) or QuotaRecord.unlimited(project_id))


async def set_quota(tx: Transaction, caller: Caller, project_id: str, body: QuotaSet) -> Quota:
    """Set new limits. The project keeps all that it has, also where that is more than they allow."""
    await identity_store.lock_project(tx, project_id)
    await require_project(tx, caller, project_id, Permission.QUOTA_SET)
    tx.match(await store.lock(tx, project_id) or QuotaRecord.unlimited(project_id))
    row = await store.put(tx, project_id, body.model_dump())
    await tx.changed(QuotaEvent.SET, row, project_id=project_id)
    await tx.audit("quota.set", project_id, project_id=project_id, detail=body.model_dump())
    return await _to_model(tx, row)


async def require_quota(tx: Transaction, project_id: str, more: Mapping[str, int]) -> None:
    """Refuse what would pass a limit. The quota stays locked until the claim is committed."""
    limits = await store.lock(tx, project_id)
    if limits is None:
        return
    used = await store.used(tx, project_id)
    over = _passed(limits, used, more)
    if over:
        context = {name: {"used": getattr(used, name), "limit": getattr(limits, name)} for name in _WORDS}
        raise Refusal(Code.QUOTA_EXCEEDED, f"the project's quota does not allow it: {'; '.join(over)}", context=context)


def _passed(quota: QuotaRecord, use: ProjectUse, more: Mapping[str, int]) -> list[str]:
    passed = []
    for name, words in _WORDS.items():
        used, limit, asked = getattr(use, name), getattr(quota, name), more.get(name, 0)
        if asked and limit is not None and used + asked > limit:
            passed.append(f"{words}: {used} used, {asked} more asked for, {limit} allowed")
    return passed


async def over_quota(tx: Transaction, project_id: str, more: Mapping[str, int]) -> list[str] | None:
    """Which limits would be passed; None where somebody else holds the quota now.

    For those who hold nodes already: others hold the quota first and then wait for nodes, so nobody may wait here.
    """
    if await store.get(tx, project_id) is None:
        return []
    limits = await store.try_lock(tx, project_id)
    return None if limits is None else _passed(limits, await store.used(tx, project_id), more)
