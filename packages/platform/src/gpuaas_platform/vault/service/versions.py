"""The values of credentials and secrets: each in OpenBao at a path of its own, with a row that knows of it."""

import structlog

from gpuaas_contract.problems import Code
from gpuaas_contract.secret_deliveries import Encoding
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.secrets.storage import deliveries as delivery_store
from gpuaas_platform.vault.records import SecretVersionRecord, StoredState
from gpuaas_platform.vault.storage import versions as store

log = structlog.get_logger()
PATIENCE_SECONDS = 60
"""After that a write is taken for lost. OpenBao is given ten seconds to answer."""
SWEEP_BATCH = 100
DELIVERY_HOURS = 48


def path_of(owner_id: str, version: int) -> str:
    return f"secrets/{owner_id}/{version}"


async def refuse_in_flight(tx: Transaction) -> None:
    if tx.request_key is not None and await store.is_in_flight(tx):
        raise Refusal(Code.IDEMPOTENCY_IN_FLIGHT, "the first request with this key is still running", retry_after=1)


async def settle(tx: Transaction, owner_id: str, version: int) -> None:
    if not await store.settle(tx, owner_id, version):
        raise Refusal(Code.UNAVAILABLE, "the secrets server took too long; try again", retry_after=1)


async def by_owner(tx: Transaction, owner_ids: list[str]) -> dict[str, list[SecretVersionRecord]]:
    """Those that are or were in use."""
    found: dict[str, list[SecretVersionRecord]] = {id: [] for id in owner_ids}
    for row in await store.list_of(tx, owner_ids):
        if row.valid_at is not None:
            found[row.owner_id].append(row)
    return found


async def next_number(tx: Transaction, owner_id: str) -> int:
    return max((row.version for row in await store.list_of(tx, [owner_id])), default=0) + 1


async def choose(tx: Transaction, owner_id: str, version: int | None, what: str) -> SecretVersionRecord:
    """The version that a delivery is about: the one that was asked for, else the newest."""
    valid = [row for row in await store.list_of(tx, [owner_id]) if row.state == StoredState.VALID]
    wanted = [row for row in valid if version in (None, row.version)]
    if not wanted:
        which = "no valid version" if version is None else f"no valid version {version}"
        raise Refusal(Code.INVALID_STATE, f"{what} has {which}", context={"valid": [row.version for row in valid]})
    return wanted[-1]


class SecretKeeper:
    def __init__(self, database: Database, openbao: OpenBao) -> None:
        self.database = database
        self.openbao = openbao

    async def keep(self, owner_id: str, version: int, value: str, encoding: Encoding) -> None:
        await self.openbao.keep_secret(path_of(owner_id, version), {"value": value, "encoding": encoding.value})

    async def sweep(self) -> int:
        """Destroy what has ended and what nobody finished. Safe in many processes: there is nothing twice."""
        async with self.database.system_transaction() as tx:
            rows = await store.list_unsettled(tx, PATIENCE_SECONDS, SWEEP_BATCH)
            await delivery_store.sweep(tx, DELIVERY_HOURS)
        destroyed = 0
        for row in rows:
            try:
                await self.openbao.destroy_secret(path_of(row.owner_id, row.version))
            except Refusal:
                log.info("secrets_not_destroyed_yet", waiting=len(rows) - destroyed)
                return destroyed
            except RuntimeError:
                # One broken path must not keep the others; it stays on the list.
                log.exception("secret_not_destroyed", owner_id=row.owner_id, version=row.version)
                continue
            async with self.database.system_transaction() as tx:
                if await store.set_ended(tx, row.owner_id, row.version):
                    detail = {"version": row.version}
                    await tx.audit("secret.destroy", row.owner_id, project_id=row.project_id, detail=detail)
            destroyed += 1
        return destroyed
