"""Sealing the audit trail, and showing it together with the proof that it is whole."""

import base64
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime

from gpuaas_contract.audit import (
    GENESIS,
    NEWEST_FORM,
    PLATFORM_CHAIN,
    AuditBatch,
    AuditBatchPage,
    AuditCheckpoint,
    AuditEntry,
    AuditPage,
    ExportEnd,
    ExportHeader,
    OmittedEntry,
    batch_hash,
    checkpoint_message,
    entry_hash,
)
from gpuaas_contract.base import Resource
from gpuaas_contract.problems import Code
from gpuaas_platform.audit import storage as store
from gpuaas_platform.audit.records import AuditBatchRecord, AuditEntryRecord, AuditFilter, SealedEntryRecord
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.core.pages import cut_page, decode_cursor, encode_cursor, foreign_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.tenants import get_tenant, require_project

BATCH = 1_000
MOST_EXPORTS = 2
EXPORT_PAGE = 100
"""Small: other requests are answered between two pages."""
RECHECK_SECONDS = 1.0


class AuditService:
    def __init__(self, database: Database, openbao: OpenBao) -> None:
        self._database = database
        self._openbao = openbao
        self._exporting: Counter[str] = Counter()

    @contextmanager
    def exporting(self, principal_id: str) -> Iterator[None]:
        """Count an export while it lasts, of which each principal may have so many in this process."""
        if self._exporting[principal_id] >= MOST_EXPORTS:
            detail = f"{MOST_EXPORTS} exports of yours are running, the most at a time; wait for one to end"
            raise Refusal(Code.RATE_LIMITED, detail, retry_after=5)
        self._exporting[principal_id] += 1
        try:
            yield
        finally:
            self._exporting[principal_id] -= 1
            if not self._exporting[principal_id]:
                del self._exporting[principal_id]

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
        found = await self.head_of(chain)
        if found is None:
            raise not_found("checkpoint of", chain)
        return found

    async def head_of(self, chain: str) -> AuditCheckpoint | None:
        """Return the signed head of a chain, from outside the database."""
        document = await self._openbao.read_document(f"audit/{chain}")
        if document is None:
            return None
        keys = await self._openbao.token_public_keys()
        public_key = base64.b64encode(keys[document["key_version"]]).decode()
        return AuditCheckpoint(chain=chain, public_key=public_key, **document)

    async def export(
        self,
        caller: Caller,
        correlation_id: str,
        tenant_id: str | None,
        project_id: str | None,
        only: AuditFilter,
        after_batch: int,
        authenticate: Callable[[], Awaitable[Caller]],
    ) -> "Export":
        """Begin to export one chain, or what it has of a project: of all the rest there is nothing but hashes.

        `authenticate` says who asks, as it is then: the export ends with the right to it."""
        async with self._database.transaction(caller.id, correlation_id) as tx:
            chain = await _exported_chain(tx, caller, tenant_id, project_id)
            before = await store.get_batch(tx, chain, after_batch)
            if after_batch and before is None:
                raise not_found("batch", str(after_batch))
            filters = {name: value for name, value in asdict(only).items() if value is not None}
            filters |= {} if project_id is None else {"project_id": project_id}
            await tx.audit(
                "audit.export",
                chain,
                tenant_id=None if chain == PLATFORM_CHAIN else chain,
                project_id=project_id,
                detail={"after_batch": after_batch, **filters},
            )
        # Before the head: what is sealed meanwhile comes on top of the checkpoint, never below.
        checkpoint = await self.head_of(chain)
        async with self._database.reading(caller.id, correlation_id) as tx:
            head = await store.last_batch(tx, chain)
        header = ExportHeader(chain=chain, exported_at=datetime.now(UTC), filters=filters)
        if before is not None:
            begin = {"after_batch": after_batch, "after_position": before.last_position, "previous_hash": before.hash}
            header = header.model_copy(update=begin)

        async def check() -> None:
            again = await authenticate()
            async with self._database.reading(again.id, correlation_id) as tx:
                await _exported_chain(tx, again, tenant_id, project_id)

        return Export(self._database, caller, correlation_id, header, head, checkpoint, only, project_id, check)


class Export:
    """The lines of an export, a page at a time. Nothing is held in the database between two pages."""

    def __init__(
        self,
        database: Database,
        caller: Caller,
        correlation_id: str,
        header: ExportHeader,
        head: AuditBatchRecord | None,
        checkpoint: AuditCheckpoint | None,
        only: AuditFilter,
        project_id: str | None,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self.caller = caller
        self._check = check
        self._checked_at = time.monotonic()
        self._database = database
        self._correlation_id = correlation_id
        self._header = header
        self._head = head
        self._checkpoint = checkpoint
        self._only = only
        self._project_id = project_id
        self._counts = {"batches": 0, "entries": 0, "omitted": 0}

    async def pages(self) -> AsyncIterator[str]:
        yield _line(header=self._header)
        position, number = self._header.after_position, self._header.after_batch
        last = self._head.number if self._head else 0
        entries: list[SealedEntryRecord] = []
        while number < last:
            async with self._reading() as tx:
                batches = await store.list_batches(tx, self._header.chain, number, EXPORT_PAGE)
            if not batches:
                return
            for batch in batches:
                if batch.number > last:
                    break
                lines = [_line(batch=to_wire(AuditBatch, batch))]
                while position < batch.last_position:
                    if not entries:
                        async with self._reading() as tx:
                            entries = await store.list_sealed(tx, self._header.chain, position, EXPORT_PAGE)
                        yield "".join(lines)
                        lines = []
                    if not entries or entries[0].position > batch.last_position:
                        break
                    row = entries.pop(0)
                    position = row.position
                    lines.append(self._shown(row))
                yield "".join(lines)
                # An entry that is gone must not hold up the rest: whoever checks the export finds the gap.
                number, position = batch.number, batch.last_position
                self._counts["batches"] += 1
        if self._checkpoint is not None:
            yield _line(checkpoint=self._checkpoint)
        yield _line(end=ExportEnd(**self._counts))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Transaction]:
        """For the next page, where the right to it still stands; a slow reader takes hours for all of them."""
        if time.monotonic() - self._checked_at > RECHECK_SECONDS:
            await self._check()
            self._checked_at = time.monotonic()
        async with self._database.reading(self.caller.id, self._correlation_id) as tx:
            yield tx

    def _shown(self, row: SealedEntryRecord) -> str:
        entry = to_entry(row)
        wanted = matches(self._only, row) and self._project_id in (None, row.project_id)
        self._counts["entries" if wanted else "omitted"] += 1
        if wanted:
            return _line(entry=entry)
        return _line(omitted=OmittedEntry(position=row.position, hash=entry_hash(entry)))


def _line(**one: Resource) -> str:
    ((name, value),) = one.items()
    return f'{{"{name}":{value.model_dump_json()}}}\n'


def matches(only: AuditFilter, row: AuditEntryRecord) -> bool:
    """Whether an entry is one of those that a list with this filter has."""
    exact = ("principal_id", "target", "outcome", "correlation_id")
    return (only.action is None or row.action.startswith(only.action)) and all(
        getattr(only, name) in (None, getattr(row, name)) for name in exact
    )


def to_entry(row: AuditEntryRecord) -> AuditEntry:
    """Show an entry without what its seal does not cover: that could have been written by anybody since."""
    uncovered = row.position is not None and row.form == 1
    return to_wire(AuditEntry, row, **dict.fromkeys(("address", "user_agent", "service"), "") if uncovered else {})


async def _seal_chain(tx: Transaction, chain: str, rows: list[AuditEntryRecord]) -> None:
    previous = await store.last_batch(tx, chain)
    number = previous.number + 1 if previous else 1
    first = previous.last_position + 1 if previous else 1
    entries = [to_wire(AuditEntry, row, position=first + index, form=NEWEST_FORM) for index, row in enumerate(rows)]
    hash = batch_hash(previous.hash if previous else GENESIS, entries)
    await store.seal(tx, chain, number, first, first + len(rows) - 1, hash, [row.id for row in rows], NEWEST_FORM)


async def _exported_chain(tx: Transaction, caller: Caller, tenant_id: str | None, project_id: str | None) -> str:
    if project_id is not None:
        return (await require_project(tx, caller, project_id, Permission.AUDIT_READ)).tenant_id
    return await _readable_chain(tx, caller, tenant_id)


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
    return AuditPage(items=[to_entry(row) for row in rows], next_cursor=after)


async def list_sealed(
    tx: Transaction, caller: Caller, tenant_id: str | None, cursor: str | None, limit: int
) -> AuditPage:
    """The entries of one chain in the order of their positions: what a verifier reads."""
    chain = await _readable_chain(tx, caller, tenant_id)
    rows = await store.list_sealed(tx, chain, _decode_number(cursor), limit + 1)
    after = _encode_number(rows[limit - 1].position) if len(rows) > limit else None
    return AuditPage(items=[to_entry(row) for row in rows[:limit]], next_cursor=after)


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
