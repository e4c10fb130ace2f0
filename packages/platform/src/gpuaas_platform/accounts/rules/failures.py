"""Failed log-ins for the audit trail: the first from an address at once, the rest of its minute as one entry.

A flood must not fill the disk: what is written is bounded by the number of addresses, and that by a constant."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuaas_contract.base import JsonObject
from gpuaas_platform.core.origins import Origin

WINDOW_SECONDS = 60
MOST_ADDRESSES = 60
"""In one window and process; those beyond are counted together, without their addresses."""
MOST_TARGETS = 10
SEVERAL = "several"


@dataclass(frozen=True, slots=True)
class Failure:
    action: str
    target: str
    """A user's or an account's id; a keyed hash where what was typed belongs to nobody."""
    origin: Origin
    correlation_id: str
    limited: bool = False
    """Refused before the password was looked at."""


@dataclass(frozen=True, slots=True)
class FailureEntry:
    action: str
    target: str
    origin: Origin
    correlation_id: str
    detail: JsonObject


@dataclass(slots=True)
class _Window:
    first: Failure
    ends_at: float
    count: int = 0
    """After the first."""
    limited: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    other_targets: int = 0

    def add(self, failure: Failure) -> None:
        self.count += 1
        if failure.limited:
            self.limited += 1
        elif failure.target in self.targets or len(self.targets) < MOST_TARGETS:
            self.targets[failure.target] += 1
        else:
            self.other_targets += 1

    def entry(self) -> FailureEntry:
        target = next(iter(self.targets)) if len(self.targets) == 1 and not self.other_targets else SEVERAL
        detail = {
            "count": self.count,
            "limited": self.limited,
            "seconds": WINDOW_SECONDS,
            "targets": dict(self.targets),
            "other_targets": self.other_targets,
        }
        return FailureEntry(self.first.action, target, self.first.origin, self.first.correlation_id, detail)


class FailureWindows:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[tuple[str, str], _Window] = {}
        self._due: list[FailureEntry] = []

    def note(self, failure: Failure) -> None:
        key = (failure.action, failure.origin.group)
        if key not in self._open and len(self._open) >= MOST_ADDRESSES:
            key = (failure.action, "")
            service = failure.origin.service
            failure = Failure(failure.action, SEVERAL, Origin("", "", lambda: service), failure.correlation_id)
        window = self._open.get(key)
        if window is not None:
            window.add(failure)
            return
        self._open[key] = _Window(failure, self._clock() + WINDOW_SECONDS)
        detail: JsonObject = {"count": 1}
        if failure.limited:
            detail["limited"] = 1
        self._due.append(FailureEntry(failure.action, failure.target, failure.origin, failure.correlation_id, detail))

    def take_due(self, *, all_of_them: bool = False) -> list[FailureEntry]:
        """Return what is to be written now, once."""
        now = self._clock()
        for key, window in list(self._open.items()):
            if all_of_them or window.ends_at <= now:
                del self._open[key]
                if window.count:
                    self._due.append(window.entry())
        due, self._due = self._due, []
        return due
