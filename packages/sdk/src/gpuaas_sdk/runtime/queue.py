"""The operations of one process: which of them wait, until when, and which may start now."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuaas_contract.operations import Operation
from gpuaas_sdk import clock
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.runtime.breaker import Breakers
from gpuaas_sdk.runtime.errors import PlatformAway, RetryLater

PLATFORM_AWAY = RetryPolicy(first_delay=0.2, longest_delay=5.0)
TRY_AGAIN = RetryPolicy(first_delay=1.0, longest_delay=30.0)
MAX_RUNNING = 64
SHORTEST_WAIT = 0.01


@dataclass(slots=True, eq=False)
class WorkItem:
    """An operation that this process works on, or waits to work on."""

    operation_id: str
    instance_id: str | None
    member_id: str | None
    """None for the whole instance, and until a claim says which member a change is about."""
    correlation_id: str
    failures: int = 0
    not_before: float = 0.0
    ready_at: float = 0.0
    """Since when it could run, had it been let; for the metrics."""
    running_since: float | None = None
    blocked: bool = False
    """It could be claimed, but its object is busy, or too much else runs."""

    @property
    def target(self) -> str:
        """The object that one worker at a time works on: a member, or the whole instance."""
        return str(self.member_id or self.instance_id)

    def excludes(self, other: "WorkItem") -> bool:
        """Whether the two are about the same object: one member, or an instance and any of its members."""
        if self.instance_id is None or self.instance_id != other.instance_id:
            return False
        return self.member_id is None or other.member_id in (None, self.member_id)


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """Numbers of this moment, and sums since the process began."""

    running: int
    blocked: int
    """Could run, but their object is busy, or too much else runs."""
    delayed: int
    """Come back after a pause."""
    longest_running_seconds: float
    added: int
    started: int
    retried: int
    wait_seconds: float
    """From the moment when an operation could run until it did, over all that were started."""
    work_seconds: float


@dataclass(frozen=True, slots=True)
class Due:
    start: list[WorkItem] = field(default_factory=list)
    """These count as running from now on."""
    doubtful: list[WorkItem] = field(default_factory=list)
    """These run, although something else of their object can be claimed: they may have been pre-empted."""


class WorkQueue:
    """Decides what runs. It does no I/O; its clock is the event loop's.

    - An operation is in it once, however often the feed and the list name it.
    - Operations about one object run one at a time, in the order in which they were asked for.
    - What failed comes back after a growing pause; a target that fails again and again is left alone for a while.
    - Where more could run than may, instances take turns: one with many members does not hold up the others.
    """

    def __init__(self, *, max_running: int = MAX_RUNNING) -> None:
        self._max_running = max_running
        self._breakers = Breakers()
        self._items: dict[str, WorkItem] = {}
        self._closed = False
        self._woken = asyncio.Event()
        self._added = self._started = self._retried = 0
        self._wait_seconds = self._work_seconds = 0.0

    def running(self, operation_id: str) -> bool:
        item = self._items.get(operation_id)
        return item is not None and item.running_since is not None

    def replace(self, claimable: Iterable[Operation]) -> Due:
        """Take the whole list of what can be claimed; what is not in it and does not run is forgotten."""
        due = Due()
        now = _now()
        listed = {operation.id: operation for operation in claimable}
        for id in [id for id in self._items if id not in listed and not self.running(id)]:
            del self._items[id]
        ready = []
        # Ids sort by the time of creation.
        for id in sorted(listed):
            item = self._items.get(id) or self._add(_item_of(listed[id]))
            if item.running_since is not None:
                continue
            item.member_id = listed[id].member_id
            # Not beyond its deadline: then it is claimed once more, to be failed.
            open_until = min(self._breakers.open_until(item.target), now + _seconds_left(listed[id]))
            item.not_before = max(item.not_before, open_until)
            item.blocked = False
            if item.not_before <= now:
                ready.append(item)
        self._start_ready(ready, due)
        return due

    def _start_ready(self, ready: list[WorkItem], due: Due) -> None:
        running = [item for item in self._items.values() if item.running_since is not None]
        shares = Counter(item.instance_id for item in running)
        room = 0 if self._closed else self._max_running - len(running)
        while ready and room > 0:
            # The oldest of the instance that has the least at work.
            item = min(ready, key=lambda item: (shares[item.instance_id], item.operation_id))
            ready.remove(item)
            if others := [other for other in running if item.excludes(other)]:
                item.blocked = True
                due.doubtful.extend(others)
                continue
            self._start(item)
            running.append(item)
            shares[item.instance_id] += 1
            due.start.append(item)
            room -= 1
        for item in ready:
            item.blocked = True

    def add(self, operation_id: str, instance_id: str | None, correlation_id: str) -> WorkItem | None:
        """Take an operation of the app that the feed tells of. It starts at once (and is returned) where nothing can be
        in its way, whichever member it is about; else the next list decides."""
        now = _now()
        if (
            self._closed
            or operation_id in self._items
            or instance_id is None
            or self._breakers.any_open(now)
            or len(self._items) >= self._max_running
            or any(item.instance_id == instance_id for item in self._items.values())
        ):
            return None
        item = self._add(WorkItem(operation_id, instance_id, None, correlation_id))
        self._start(item)
        return item

    def _add(self, item: WorkItem) -> WorkItem:
        item.ready_at = _now()
        self._items[item.operation_id] = item
        self._added += 1
        return item

    def _start(self, item: WorkItem) -> None:
        now = _now()
        item.running_since = now
        self._started += 1
        self._wait_seconds += max(now - max(item.ready_at, item.not_before), 0.0)

    def done(self, item: WorkItem) -> None:
        """It ended, as a success or not, or belongs to somebody else: the machine and the platform answered."""
        self._stop(item)
        self._items.pop(item.operation_id, None)
        self._breakers.succeeded(item.target)
        if any(waiting.blocked for waiting in self._items.values()):
            self.wake()

    def retry(self, item: WorkItem, later: RetryLater) -> None:
        """It comes back after a pause: its own, or a growing one."""
        self._stop(item)
        item.failures += 1
        item.not_before = _now() + self._pause(item, later)
        self._retried += 1
        self.wake()

    def _stop(self, item: WorkItem) -> None:
        if item.running_since is not None:
            self._work_seconds += _now() - item.running_since
            item.running_since = None

    def _pause(self, item: WorkItem, later: RetryLater) -> float:
        if later.after is not None:
            return later.after
        if isinstance(later, PlatformAway):
            # Its restart says nothing about the member, which a breaker would leave alone when all is well again.
            return PLATFORM_AWAY.delay(item.failures)
        self._breakers.failed(item.target, _now())
        return TRY_AGAIN.delay(item.failures)

    def close(self) -> None:
        """Nothing starts any more."""
        self._closed = True
        self.wake()

    def wake(self) -> None:
        """End the present wait: the list is worth another look."""
        self._woken.set()

    async def wait(self, at_most: float) -> None:
        """Wait until woken, until something that was delayed is due, or so many seconds."""
        await self.pause(max(min(at_most, self.seconds_until_due()), SHORTEST_WAIT))

    async def pause(self, seconds: float) -> None:
        """Wait until woken, or so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def seconds_until_due(self) -> float:
        """Blocked items do not count: the end of whatever is in their way wakes the queue."""
        now = _now()
        delayed = [item.not_before - now for item in self._waiting if not item.blocked]
        return min(delayed, default=float("inf"))

    @property
    def _waiting(self) -> list[WorkItem]:
        return [item for item in self._items.values() if item.running_since is None]

    @property
    def metrics(self) -> QueueMetrics:
        now = _now()
        running = [now - item.running_since for item in self._items.values() if item.running_since is not None]
        blocked = sum(item.blocked for item in self._waiting)
        return QueueMetrics(
            running=len(running),
            blocked=blocked,
            delayed=len(self._waiting) - blocked,
            longest_running_seconds=max(running, default=0.0),
            added=self._added,
            started=self._started,
            retried=self._retried,
            wait_seconds=self._wait_seconds,
            work_seconds=self._work_seconds,
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _item_of(operation: Operation) -> WorkItem:
    return WorkItem(operation.id, operation.instance_id, operation.member_id, operation.correlation_id)


def _seconds_left(operation: Operation) -> float:
    return (operation.deadline - clock.now()).total_seconds()
