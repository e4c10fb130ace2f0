"""Sealing the audit trail, and showing it together with the proof that it is whole."""

import base64
from collections import defaultdict

from gpuaas_contract.audit import (
    GENESIS,
    PLATFORM_CHAIN,
    AuditBatch,
    AuditBatchPage,
    AuditCheckpoint,
    AuditEntry,
    AuditPage,
    batch_hash,
    checkpoint_message,
)
from gpuaas_platform.audit import storage as store
from gpuaas_platform.audit.records import AuditEntryRecord, AuditFilter
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import not_found
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.core.pages import cut_page, decode_cursor, encode_cursor, foreign_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.tenants import get_tenant, require_project

BATCH = 1_000


class AuditService:
    def __init__(self, database: Database, openbao: OpenBao) -> None:
        self._database = database
        self._openbao = openbao

    async def seal(self) -> int:
        """One batch per chain of what is committed and not sealed yet. Writers never wait for this."""
        async with self._database.system_transaction() as tx:
            rows = await store.lock_unsealed(tx, BATCH)
            chains: dict[str, list[AuditEntryRecord]] = defaultdict(list)
            for row in rows:
                chains[row.chain].append(row)
            for chain, members in chains.items():
                await _seal_chain(tx, chain, members)
        return len(rows)

    async def write_checkpoints(self) -> None:
        """Sign the head of every chain that has grown, and keep that where the database cannot reach."""
        async with self._database.system_transaction() as tx:
            heads = await store.list_without_checkpoint(tx)
        for head in heads:
            message = checkpoint_message(head.chain, head.number, head.last_position, head.hash)
            version, signature = await self._openbao.sign(message)
            document = {
                "number": head.number,
                "last_position": head.last_position,
                "hash": head.hash,
                "key_version": version,
                "signature": base64.b64encode(signature).decode(),
            }
            await self._openbao.write_document(f"audit/{head.chain}", document)
            async with self._database.system_transaction() as tx:
                await store.mark_checkpointed(tx, head.chain, head.number)

    async def checkpoint(self, caller: Caller, correlation_id: str, tenant_id: str | None) -> AuditCheckpoint:
        async with self._database.transaction(caller.id, correlation_id) as tx:
            chain = await _readable_chain(tx, caller, tenant_id)
        document = await self._openbao.read_document(f"audit/{chain}")
        if document is None:
            raise not_found("checkpoint of", chain)
        keys = await self._openbao.token_public_keys()
        public_key = base64.b64encode(keys[document["key_version"]]).decode()
        return AuditCheckpoint(chain=chain, public_key=public_key, **document)


async def _seal_chain(tx: Transaction, chain: str, rows: list[AuditEntryRecord]) -> None:
    previous = await store.last_batch(tx, chain)
    number = previous.number + 1 if previous else 1
    first = previous.last_position + 1 if previous else 1
    entries = [to_wire(AuditEntry, row, position=first + index) for index, row in enumerate(rows)]
    hash = batch_hash(previous.hash if previous else GENESIS, entries)
    await store.seal(tx, chain, number, first, first + len(rows) - 1, hash, [row.id for row in rows])


async def _readable_chain(tx: Transaction, caller: Caller, tenant_id: str | None) -> str:
    if tenant_id is None:
        caller.require(Permission.AUDIT_READ, Scope(), "audit trail", PLATFORM_CHAIN)
        return PLATFORM_CHAIN
    await get_tenant(tx, caller, tenant_id)
    caller.require(Permission.AUDIT_READ, Scope(tenant_id=tenant_id), "tenant", tenant_id)
    return tenant_id


async def list_entries(
    tx: Transaction,
    caller: Caller,
    tenant_id: str | None,
    project_id: str | None,
    only: AuditFilter,
    cursor: str | None,
    limit: int,
) -> AuditPage:
    """All there is, for a platform admin who names no tenant and no project."""
    chain = None
    if project_id is not None:
        await require_project(tx, caller, project_id, Permission.AUDIT_READ)
    elif tenant_id is not None or not caller.is_platform_admin:
        chain = await _readable_chain(tx, caller, tenant_id)
    rows = await store.list_entries(tx, chain, project_id, only, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return AuditPage(items=[to_wire(AuditEntry, row) for row in rows], next_cursor=after)


async def list_sealed(
    tx: Transaction, caller: Caller, tenant_id: str | None, cursor: str | None, limit: int
) -> AuditPage:
    """The entries of one chain in the order of their positions: what a verifier reads."""
    chain = await _readable_chain(tx, caller, tenant_id)
    rows = await store.list_sealed(tx, chain, _decode_number(cursor), limit + 1)
    after = _encode_number(rows[limit - 1].position) if len(rows) > limit else None
    return AuditPage(items=[to_wire(AuditEntry, row) for row in rows[:limit]], next_cursor=after)


async def list_batches(
    tx: Transaction, caller: Caller, tenant_id: str | None, cursor: str | None, limit: int
) -> AuditBatchPage:
    chain = await _readable_chain(tx, caller, tenant_id)
    rows = await store.list_batches(tx, chain, _decode_number(cursor), limit + 1)
    after = _encode_number(rows[limit - 1].number) if len(rows) > limit else None
    return AuditBatchPage(items=[to_wire(AuditBatch, row) for row in rows[:limit]], next_cursor=after)


def _encode_number(number: int) -> str:
    return encode_cursor(str(number))


def _decode_number(cursor: str | None) -> int:
    position = decode_cursor(cursor)
    if position and not position.isdecimal():
        raise foreign_cursor()
    return int(position or 0)
