"""The connection pool, and a transaction that writes its change and audit rows along with its effect."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, LiteralString, TypeVar

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

from gpuaas_contract import ids
from gpuaas_contract.events import AgentStep, Event
from gpuaas_contract.nouns import Noun
from gpuaas_contract.problems import Code
from gpuaas_platform.core.checks import Check, CheckNeededError, Verdict, Verdicts
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.origins import Origin, current_origin
from gpuaas_platform.core.outbox import WRITE, Outbox
from gpuaas_platform.core.records import Owned, Record, Revised, record_row
from gpuaas_platform.core.wakeups import OUTBOX

request_fingerprint: ContextVar[str] = ContextVar("request_fingerprint", default="")
"""Set for a request that changes something, so that whatever its transactions write about it can name it."""

touched: ContextVar[dict[str, str | None] | None] = ContextVar("touched", default=None)
"""Set for a request: where the last thing belongs that it changed, or that it was denied."""


def touch(tenant_id: str | None, project_id: str | None) -> None:
    place = touched.get()
    if place is not None and (tenant_id or project_id):
        place.update(tenant_id=tenant_id, project_id=project_id)


_APP_NOUNS = frozenset(noun.value for noun in Noun if noun.of_app)

R = TypeVar("R", bound=Record)
Row = Mapping[str, Any]
Params = Mapping[str, Any]


class Transaction:
    """One database transaction on behalf of one principal under one correlation id."""

    def __init__(self, connection: AsyncConnection[DictRow], principal_id: str, correlation_id: str) -> None:
        self._connection = connection
        self.principal_id = principal_id
        self.correlation_id = correlation_id
        self.fingerprint = request_fingerprint.get()
        """Of the request that this transaction belongs to, where a known principal made one."""
        self.request_key: str | None = None
        """Principal and idempotency key of that request: an intent carries it, so that a duplicate finds it."""
        self.expected_revision: int | None = None
        """From `If-Match`: what the caller took the target of its request to be."""
        self.verdicts: Verdicts | None = None
        """The verdicts of others' schemas, found for this request outside of its transactions."""
        self._outbox = Outbox()

    def verdict(self, check: Check) -> Verdict:
        """Return what a check has found. Where it has not been run, begin again after it was."""
        self.need_verdicts([check])
        assert self.verdicts is not None
        found = self.verdicts.get(check)
        assert found is not None
        return found

    def need_verdicts(self, checks: Sequence[Check]) -> None:
        """Have all of them run at once, where they are going to be asked for one by one."""
        assert self.verdicts is not None, "only a request that mutates can wait for checks"
        if missing := [check for check in checks if self.verdicts.get(check) is None]:
            raise CheckNeededError(missing)

    async def one(self, sql: LiteralString, **params: Any) -> Row | None:
        cursor = await self._connection.execute(sql, _adapt(params))
        return await cursor.fetchone()

    async def all(self, sql: LiteralString, **params: Any) -> list[Row]:
        cursor = await self._connection.execute(sql, _adapt(params))
        return list(await cursor.fetchall())

    async def find(self, record: type[R], sql: LiteralString, **params: Any) -> R | None:
        """Return the first row as a record; None where there is no row."""
        cursor = self._connection.cursor(row_factory=record_row(record))
        return await (await cursor.execute(sql, _adapt(params))).fetchone()

    async def fetch(self, record: type[R], sql: LiteralString, **params: Any) -> R:
        """Return the row that a statement must have, such as that of an UPDATE under its row's lock."""
        found = await self.find(record, sql, **params)
        assert found is not None, f"no row: {sql}"
        return found

    async def fetch_all(self, record: type[R], sql: LiteralString, **params: Any) -> list[R]:
        cursor = self._connection.cursor(row_factory=record_row(record))
        return await (await cursor.execute(sql, _adapt(params))).fetchall()

    async def run(self, sql: LiteralString, **params: Any) -> int:
        cursor = await self._connection.execute(sql, _adapt(params))
        return cursor.rowcount

    async def one_trip(self, *statements: tuple[LiteralString, Params]) -> Row | None:
        """Run statements as a transaction of their own, in one round trip; returns the first row of the last one.
        Only on a dedicated connection."""
        async with self._connection.pipeline():
            async with self._connection.transaction():
                for sql, params in statements:
                    cursor = await self._connection.execute(sql, _adapt(params))
            return await cursor.fetchone()

    def match(self, row: Revised) -> None:
        """Refuse to change a target that is not as the caller saw it. Call it under the target's row lock."""
        if self.expected_revision is not None and row.revision != self.expected_revision:
            raise Refusal(
                Code.REVISION_MISMATCH,
                f"{row.id} is at revision {row.revision}, not {self.expected_revision}; read it again",
                context={"revision": row.revision},
            )

    async def changed(
        self,
        event: Event | AgentStep,
        row: Revised,
        *,
        message: str = "",
        project_id: str | None = None,
        instance_id: str | None = None,
        app_slug: str | None = None,
    ) -> None:
        """Put a change into the feed. Call it after the row lock of `row` was taken.

        Where it belongs is found by the platform, so that those who may see the thing see its changes: the project
        and tenant of `row` or of the instance, and the app of the instance, or the one that is given."""
        noun = event.noun
        tenant: str | None = row.id if noun == Noun.TENANT else getattr(row, "tenant_id", None)
        project: str | None = project_id or getattr(row, "project_id", None)
        touch(tenant, project)
        self._outbox.changes.append(
            {
                "noun": noun,
                "id": row.id,
                "event": event.value,
                "message": message,
                "revision": row.revision,
                "project": project,
                "tenant": tenant,
                "instance": instance_id,
                "app": app_slug or (getattr(row, "app_slug", None) if noun in _APP_NOUNS else None),
                "member": row.id if noun == Noun.MEMBER else getattr(row, "member_id", None),
                "operation": row.id if noun == Noun.OPERATION else getattr(row, "operation_id", None),
                "correlation": self.correlation_id,
            }
        )
        await self.notify(OUTBOX)

    async def audit(
        self,
        action: str,
        target: str,
        *,
        tenant_id: str | None = None,
        project_id: str | None = None,
        outcome: str = "succeeded",
        detail: Mapping[str, Any] | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Write an audit entry into the chain of the tenant, of the project's tenant, or of the platform.

        `origin` is that of the present request, unless the entry is about one that is over."""
        touch(tenant_id, project_id)
        origin = origin or current_origin.get()
        self._outbox.audits.append(
            {
                "id": ids.new_id(ids.AUDIT_ENTRY),
                "tenant": tenant_id,
                "action": action,
                "target": target,
                "outcome": outcome,
                "project": project_id,
                "fingerprint": self.fingerprint,
                "detail": dict(detail or {}),
                "correlation": self.correlation_id,
                "address": origin.address,
                "user_agent": origin.user_agent,
                "service": origin.service,
            }
        )

    async def audit_owned(self, action: str, row: Owned, detail: Mapping[str, Any] | None = None) -> None:
        """Write an audit entry about a thing that a project or a tenant owns."""
        await self.audit(action, row.id, tenant_id=row.tenant_id, project_id=row.project_id, detail=detail)

    @contextmanager
    def on_behalf_of(self, correlation_id: str) -> Iterator[None]:
        """Write under the correlation id of the request that began the work, whoever continues it."""
        own, self.correlation_id = self.correlation_id, correlation_id
        try:
            yield
        finally:
            self.correlation_id = own

    async def notify(self, channel: str, payload: str = "") -> None:
        self._outbox.notices[channel, payload] = None

    def keep_answer(self, key: str, status: int, body: str, rights: list[dict[str, Any]]) -> None:
        """For whoever repeats the request with its idempotency key, and still has the rights that it needed."""
        self._outbox.answer = {
            "key": key,
            "fingerprint": self.fingerprint,
            "status": status,
            "body": body,
            "rights": Jsonb(rights),
        }

    async def flush_outbox(self) -> None:
        """Write the gathered changes, audit entries, wake-ups and answer. The last statement before the commit."""
        if self._outbox:
            parameters = self._outbox.parameters()
            await self.run(WRITE, **parameters, principal=self.principal_id)

    @asynccontextmanager
    async def dry_run(self) -> AsyncIterator[None]:
        """Roll back what is written inside, and tell nobody of it."""
        outbox, self._outbox = self._outbox, Outbox()
        try:
            async with self._connection.transaction(force_rollback=True):
                yield
        finally:
            self._outbox = outbox


class Reading(Transaction):
    """Statements that only look, each for itself: without BEGIN and COMMIT they cost one round trip, not three.

    Under READ COMMITTED they see the same as inside of a transaction. One that writes or locks is a mistake here."""

    async def one(self, sql: LiteralString, **params: Any) -> Row | None:
        return await super().one(_only_looks(sql), **params)

    async def all(self, sql: LiteralString, **params: Any) -> list[Row]:
        return await super().all(_only_looks(sql), **params)

    async def find(self, record: type[R], sql: LiteralString, **params: Any) -> R | None:
        return await super().find(record, _only_looks(sql), **params)

    async def fetch_all(self, record: type[R], sql: LiteralString, **params: Any) -> list[R]:
        return await super().fetch_all(record, _only_looks(sql), **params)

    async def run(self, sql: LiteralString, **params: Any) -> int:
        raise AssertionError(f"this needs a transaction: {sql}")


def _only_looks(sql: LiteralString) -> LiteralString:
    if not sql.lstrip().startswith("SELECT") or "FOR UPDATE" in sql:
        raise AssertionError(f"this needs a transaction: {sql}")
    return sql


def _adapt(params: Params) -> dict[str, Any]:
    """Objects become jsonb. Lists stay arrays: one that is meant as jsonb goes through `json_list`."""
    return {key: Jsonb(value) if isinstance(value, Mapping) else value for key, value in params.items()}


def json_list(value: list[dict[str, Any]] | None) -> Jsonb | None:
    return None if value is None else Jsonb(value)


class Database:
    def __init__(self, url: str, *, max_size: int = 16) -> None:
        self.url = url
        self._pool: AsyncConnectionPool[AsyncConnection[DictRow]] = AsyncConnectionPool(
            url,
            min_size=2,
            max_size=max_size,
            open=False,
            timeout=5,
            # Prepared from the second use on: planning takes longer than most statements.
            kwargs={"row_factory": dict_row, "autocommit": True, "prepare_threshold": 1},
            connection_class=AsyncConnection[DictRow],
        )

        self._distrusting: asyncio.Task[None] | None = None

    def distrust(self) -> None:
        """A connection was lost, so others may be: look at all, once, instead of at each before every use."""
        if self._distrusting is None or self._distrusting.done():
            self._distrusting = asyncio.create_task(self._pool.check())

    async def open(self) -> None:
        await self._pool.open()
        await self._pool.wait(timeout=30)

    async def close(self) -> None:
        await self._pool.close()

    def pool_gauges(self) -> dict[str, float]:
        stats = self._pool.get_stats()
        return {
            "database_pool_size": stats.get("pool_size", 0),
            "database_pool_available": stats.get("pool_available", 0),
            "database_pool_waiting": stats.get("requests_waiting", 0),
        }

    @asynccontextmanager
    async def transaction(self, principal_id: str, correlation_id: str) -> AsyncIterator[Transaction]:
        async with self._pool.connection() as connection, connection.transaction():
            tx = Transaction(connection, principal_id, correlation_id)
            yield tx
            await tx.flush_outbox()

    @asynccontextmanager
    async def reading(self, principal_id: str, correlation_id: str) -> AsyncIterator[Transaction]:
        async with self._pool.connection() as connection:
            yield Reading(connection, principal_id, correlation_id)

    @asynccontextmanager
    async def system_transaction(self, correlation_id: str | None = None) -> AsyncIterator[Transaction]:
        """For work that the platform does by itself."""
        async with self.transaction("platform", correlation_id or ids.new_id(ids.CORRELATION)) as tx:
            yield tx

    @asynccontextmanager
    async def dedicated(self) -> AsyncIterator[Transaction]:
        """A connection of its own on which every statement is committed at once: for loops in which time counts."""
        async with await AsyncConnection.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            yield Transaction(connection, "platform", ids.new_id(ids.CORRELATION))

    @asynccontextmanager
    async def exclusively(self, what: str) -> AsyncIterator[None]:
        """A mutex over all processes, for rare work outside of the database that must not happen twice at once."""
        async with self.system_transaction() as tx:
            await tx.run("SELECT pg_advisory_xact_lock(hashtextextended(%(what)s, 1))", what=what)
            yield
