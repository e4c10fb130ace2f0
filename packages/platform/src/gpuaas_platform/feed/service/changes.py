"""Reading the change feed: who reads, from where, and what of it they may see."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuaas_contract import ids
from gpuaas_contract.changes import START, ChangePage
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import Code
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.wakeups import PRINCIPALS, Wakeups
from gpuaas_platform.feed.records import ChangeFilter, ChangeRecord
from gpuaas_platform.feed.rules import OPEN_NOUNS, Sight
from gpuaas_platform.feed.service.cursors import Cursors, invalid_cursor
from gpuaas_platform.feed.service.tail import Entry, FeedTail, to_entry
from gpuaas_platform.feed.storage import changes as store
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.principals import Authenticated
from gpuaas_platform.identity.service.tenants import require_project
from gpuaas_platform.instances.service.instances import require_instance

PAGE = 500
STREAM_PAGE = 100
REACH = 20_000
"""Positions that one query looks at: who sees little of a busy feed goes through it in steps."""
MAX_WAIT_SECONDS = 30
RECHECK_SECONDS = 30
"""Who reads is asked again when a NOTIFY says so, when the token ends, and this often in any case."""
SHORTEST_SECONDS = 0.5

Authenticate = Callable[[], Awaitable[Authenticated]]


@dataclass(frozen=True, slots=True)
class Batch:
    """The entries that one look found; none where nothing came for a while."""

    entries: Sequence[Entry]
    position: int


class FeedService:
    def __init__(
        self,
        database: Database,
        wakeups: Wakeups,
        cursors: Cursors,
        *,
        streams_per_principal: int,
        retention_hours: float,
        heartbeat_seconds: float,
    ) -> None:
        self._database = database
        self._most = streams_per_principal
        self._retention_hours = retention_hours
        self.heartbeat_seconds = heartbeat_seconds
        self._readers: dict[str, set[FeedReader]] = {}
        """Those who wait, by principal."""
        self.cursors = cursors
        self.tail = FeedTail(database, wakeups, self._wake_all)
        self.closing = False
        wakeups.on(PRINCIPALS, self._principal_changed)

    @property
    def count(self) -> int:
        return sum(len(readers) for readers in self._readers.values())

    async def open(
        self, authenticate: Authenticate, authenticated: Authenticated, filters: ChangeFilter, since: str | None
    ) -> "FeedReader":
        """A reader at its place. Refuses what it must not have before anything is sent."""
        await self.cursors.start()
        reader = FeedReader(self, self._database, authenticate, authenticated, filters)
        await reader.check_filters()
        await reader.begin(since)
        return reader

    async def sweep(self) -> int:
        """Delete a number of the changes that have been kept long enough."""
        async with self._database.system_transaction() as tx:
            return await store.sweep_changes(tx, self._retention_hours)

    @contextmanager
    def waiting(self, reader: "FeedReader") -> Iterator[None]:
        """Counts it among those who wait, of whom each principal may have so many in this process."""
        principal_id = reader.caller.id
        self._require_room(reader.caller)
        readers = self._readers.setdefault(principal_id, set())
        readers.add(reader)
        try:
            yield
        finally:
            readers.discard(reader)
            if not readers:
                self._readers.pop(principal_id, None)

    def _require_room(self, caller: Caller) -> None:
        if len(self._readers.get(caller.id, ())) >= self._most:
            detail = (
                f"{caller.name} has {self._most} change feeds open already, the most that one principal may have; "
                "close some, or share one"
            )
            raise Refusal(Code.RATE_LIMITED, detail, retry_after=5, context={"limit": self._most})

    def close(self) -> None:
        """The process is about to end: whoever waits gets an answer now."""
        self.closing = True
        self._wake_all()

    def _wake_all(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.wake()

    def _principal_changed(self, principal_id: str) -> None:
        """No id where the connection was lost: then it may have been anybody."""
        for principal in [principal_id] if principal_id else list(self._readers):
            for reader in self._readers.get(principal, ()):
                reader.doubt()


class FeedReader:
    """One place in the feed, for one caller. Holds a page at a time and nothing else."""

    def __init__(
        self,
        feed: FeedService,
        database: Database,
        authenticate: Authenticate,
        authenticated: Authenticated,
        filters: ChangeFilter,
    ) -> None:
        self._feed = feed
        self._database = database
        self._authenticate = authenticate
        self._filters = filters
        self._woken = asyncio.Event()
        self._take(authenticated)
        self.position = 0

    def _take(self, authenticated: Authenticated) -> None:
        self.caller = caller = authenticated.caller
        self._sight = Sight(caller)
        self._tenants = None if caller.is_platform_admin else sorted({*caller.tenant_ids, *caller.whole_tenant_ids})
        life = (authenticated.expires_at - datetime.now(UTC)).total_seconds()
        self._ask_again_at = time.monotonic() + min(max(life, SHORTEST_SECONDS), RECHECK_SECONDS)

    def cursor_at(self, position: int) -> str:
        return self._feed.cursors.encode(position, self.caller.id)

    def wake(self) -> None:
        self._woken.set()

    def doubt(self) -> None:
        """Ask again who this is before anything more is shown."""
        self._ask_again_at = 0.0
        self._woken.set()

    async def check_filters(self) -> None:
        """A project or an instance that is named must be one that the caller may know of. A tenant narrows the
        view, as in lists: in one that is not the caller's, nothing ever happens."""
        chosen, caller = self._filters, self.caller
        if chosen.tenant_id is not None and not ids.is_id(chosen.tenant_id, ids.TENANT):
            raise not_found("tenant", chosen.tenant_id)
        if chosen.project_id or chosen.instance_id:
            async with self._database.system_transaction() as tx:
                if chosen.project_id is not None:
                    await require_project(tx, caller, chosen.project_id, Permission.PROJECT_READ)
                if chosen.instance_id is not None:
                    await require_instance(tx, caller, chosen.instance_id, Permission.INSTANCE_READ)

    async def begin(self, since: str | None) -> None:
        """At the present where nothing is said, at the oldest change for `start`, else behind a cursor."""
        given = None if since in (None, START) else self._feed.cursors.decode(str(since), self.caller.id)
        if given is not None and self._feed.tail.holds(given):
            self.position = given
            return
        async with self._database.system_transaction() as tx:
            head, swept = await store.marks(tx)
        if given is None:
            self.position = swept if since == START else head
            return
        if given > head:
            raise invalid_cursor()
        if given < swept:
            raise _expired()
        self.position = given

    async def page(self, wait: float) -> ChangePage:
        """Return the changes that there are; where there are none, those that come within `wait` seconds."""
        batch = await self._look(PAGE)
        if not batch.entries and wait > 0:
            with self._feed.waiting(self):
                batch = await self._next(PAGE, min(wait, MAX_WAIT_SECONDS))
        return ChangePage(items=[entry.change for entry in batch.entries], next_cursor=self.cursor_at(batch.position))

    async def batches(self) -> AsyncIterator[Batch]:
        """For ever; an empty batch where nothing came for a while. Ends by raising the reason."""
        while not self._feed.closing:
            yield await self._next(STREAM_PAGE, self._feed.heartbeat_seconds)
        detail = "this process of the platform is ending; connect again and go on from the last id"
        raise Refusal(Code.UNAVAILABLE, detail, retry_after=1)

    async def _next(self, limit: int, seconds: float) -> Batch:
        """The next entries, or none after `seconds`."""
        ends_at = time.monotonic() + seconds
        while True:
            self._woken.clear()
            if time.monotonic() >= self._ask_again_at:
                self._take(await self._authenticate())
                await self.check_filters()
            batch = await self._look(limit)
            now = time.monotonic()
            if batch.entries or now >= ends_at or self._feed.closing:
                return batch
            with suppress(TimeoutError):
                async with asyncio.timeout(min(ends_at, self._ask_again_at) - now):
                    await self._woken.wait()

    async def _look(self, limit: int) -> Batch:
        """From memory where the place is near the end, else from the database, a page at a time."""
        tail = self._feed.tail
        while True:
            if tail.holds(self.position):
                found = tail.after(self.position, PAGE)
                seen = [entry for entry in found if self._shows(entry.record)][:limit]
                end = found[-1].position if found else tail.head
            else:
                async with self._database.system_transaction() as tx:
                    window = await store.read(
                        tx, self.position, self._tenants, OPEN_NOUNS, self._filters, limit=limit, reach=REACH
                    )
                if self.position < window.swept:
                    raise _expired()
                seen = [to_entry(change) for change in window.changes if self._shows(change)]
                end = max(window.end, self.position)
            if len(seen) == limit:
                end = seen[-1].position
            is_last = end == self.position
            self.position = end
            if seen or is_last:
                return Batch(seen, end)

    def _shows(self, change: ChangeRecord) -> bool:
        return self._filters.match(change) and self._sight.sees(
            change.noun, change.tenant_id, change.project_id, change.app_slug
        )


def _expired() -> Refusal:
    detail = (
        "changes behind this cursor are not kept any more: take a fresh cursor "
        f"(GET {Offer.READ_CHANGES.path} without since), then list what you follow, then go on from that cursor"
    )
    actions = [Offer.READ_CHANGES.action("relist", "Take a fresh cursor, then list again")]
    return Refusal(Code.CURSOR_EXPIRED, detail, allowed_actions=actions)
