"""The newest changes, once per process: however many readers wait, one query finds what they wait for."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from gpuaas_contract.changes import Change
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.core.wakeups import FEED, Wakeups
from gpuaas_platform.feed.records import ChangeFilter, ChangeRecord
from gpuaas_platform.feed.storage import changes as store

KEPT = 1_000
PAGE = 500
RECHECK_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A change, and its JSON: made once, for all who read it."""

    position: int
    record: ChangeRecord
    change: Change
    json: str


def to_entry(record: ChangeRecord) -> Entry:
    change = to_wire(Change, record)
    return Entry(record.position, record, change, change.model_dump_json())


class FeedTail:
    """Holds a bounded number of entries, without a gap up to `head`. Who is further behind asks the database."""

    def __init__(self, database: Database, wakeups: Wakeups, grown: Callable[[], None]) -> None:
        self._database = database
        self._wakeups = wakeups
        self._entries: list[Entry] = []
        self._grown = grown
        self.first: int | None = None
        """Entries behind this position are held; None until the first look."""
        self.head = 0

    def holds(self, position: int) -> bool:
        return self.first is not None and self.first <= position <= self.head

    def after(self, position: int, limit: int) -> Sequence[Entry]:
        start = bisect_right(self._entries, position, key=attrgetter("position"))
        return self._entries[start : start + limit]

    async def follow(self) -> None:
        """For as long as its connection lives: look, then wait for more."""
        async with self._database.dedicated() as link:
            while True:
                woken = self._wakeups.event(FEED)
                if not await self._look(link):
                    await self._wakeups.wait(woken, RECHECK_SECONDS)

    async def _look(self, link: Transaction) -> bool:
        """Read what has come; True where there may be more."""
        if self.first is None:
            self.first = self.head = (await store.marks(link))[0]
        window = await store.read(link, self.head, None, [], ChangeFilter(), limit=PAGE, reach=1 << 40)
        self._entries += [to_entry(change) for change in window.changes]
        if len(self._entries) > 2 * KEPT:
            self._forget(self._entries[-KEPT].position - 1)
        if window.swept > self.first:
            self._forget(window.swept)
        if window.end > self.head:
            self.head = window.end
            self._grown()
        return len(window.changes) == PAGE

    def _forget(self, position: int) -> None:
        del self._entries[: bisect_right(self._entries, position, key=attrgetter("position"))]
        self.first = position
