"""A circuit breaker for each member: what fails again and again is left alone for a while, and then tried once."""

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)
OPENS_AFTER = 5
OPEN_SECONDS = 60.0


@dataclass(slots=True)
class _State:
    failures: int = 0
    open_until: float = 0.0


class Breakers:
    """Counts consecutive failures over all operations of a member. Beside it each operation has a growing
    pause of its own; the breaker keeps a broken machine from being asked by every new operation anew."""

    def __init__(self, *, opens_after: int = OPENS_AFTER, open_seconds: float = OPEN_SECONDS) -> None:
        self._opens_after = opens_after
        self._open_seconds = open_seconds
        self._states: dict[str, _State] = {}

    def open_until(self, key: str) -> float:
        state = self._states.get(key)
        return 0.0 if state is None else state.open_until

    def any_open(self, now: float) -> bool:
        return any(state.open_until > now for state in self._states.values())

    def failed(self, key: str, now: float) -> None:
        state = self._states.setdefault(key, _State())
        state.failures += 1
        if state.failures >= self._opens_after:
            state.open_until = now + self._open_seconds
            logger.warning("%s: %s attempts failed; next one in %.0f s", key, state.failures, self._open_seconds)

    def succeeded(self, key: str) -> None:
        """Close the breaker, also after a failure that was reported: the machine and the platform answered."""
        self._states.pop(key, None)
