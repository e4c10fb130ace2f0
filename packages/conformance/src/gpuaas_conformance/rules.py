"""The checks, and which rules of docs/contract ("What a controller must do") each of them is for."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    key: str
    rules: tuple[int, ...]
    sentence: str
    scenario: str
    """In which run of the app it is looked at."""


CHECKS = (
    Check("own-account", (1,), "works with nothing but its service account and the public API", "plain"),
    Check("announced", (3,), "announces every step before it ends, and ends every step", "plain"),
    Check("fenced", (6,), "changes machines under its fencing token, and in no other way", "plain"),
    Check("members-reported", (7,), "has reported its members when an operation ends", "plain"),
    Check("ready-last", (8,), "says Ready only after every member is", "plain"),
    Check("small-detail", (14,), "keeps adapter_detail small", "plain"),
    Check("secret-kept", (10,), "shows a secret nowhere: requests, log, arguments, environment, journal", "plain"),
    Check("secret-on-machine", (10,), "keeps a secret in files that only its program can read", "plain"),
    Check("secret-rotated", (10,), "brings the newest version of a rotated secret with its next operation", "plain"),
    Check("teardown", (9,), "leaves a machine as it found it, and hands over a receipt", "plain"),
    Check("killed-after-effect", (3, 4), "goes on after a kill between a side effect and its report", "killed"),
    Check("unknown-is-not-no", (5, 9), "takes nothing apart that it cannot see, and ends when it can again", "killed"),
    Check("lease-lost", (2, 6), "stops when its lease is lost; its successor ends the work", "paused"),
    Check("stale-write", (2, 6), "writes nothing when its lease is gone: neither API nor machine takes it", "paused"),
    Check("two-controllers", (2, 4), "works while a second controller of it runs", "paused"),
    Check("heartbeats", (2,), "keeps its leases alive while it works", "paused"),
    Check("pre-empted", (2, 9), "takes everything apart when a decommission comes during the deploy", "pre-empted"),
    Check("lost-secret", (11,), "claims again where a delivered secret got lost", "weather"),
    Check("bad-weather", (2, 4), "gets through 409, 429, 503, lost answers and a feed that breaks", "weather"),
    Check("fails-in-words", (12,), "fails with a code and a sentence, never a bug; can be taken apart then", "refused"),
    Check("others-kept", (9,), "neither changes nor removes what was on a machine before it came", "others"),
)
SCENARIOS = tuple(dict.fromkeys(check.scenario for check in CHECKS))
UNCHECKED = {
    13: "what an app answers to a resize is its own matter",
    15: "the platform itself refuses the success of a teardown that left members",
    16: "not every app replaces members",
    17: "the runtime stops between two steps; its own tests look at that",
    18: "not every app is stopped and started",
    19: "only the app knows whether a member is as good as before",
    20: "what an app looks at is its own matter",
    21: "what an app observes is its own matter",
    22: "which work there is, the app alone knows",
}
"""Rules that no run can check, and why."""


@dataclass
class Findings:
    """Results of the checks. A check that looked at nothing has neither passed nor failed."""

    looked_at: dict[str, int] = field(default_factory=dict)
    broken: dict[str, list[str]] = field(default_factory=dict)

    def look(self, key: str, holds: bool, otherwise: str) -> None:
        self.looked_at[key] = self.looked_at.get(key, 0) + 1
        if not holds:
            self.broken.setdefault(key, []).append(otherwise)

    def verdict(self, key: str) -> str:
        if key in self.broken:
            return "BROKEN"
        return "kept" if self.looked_at.get(key) else "not seen"

    def rows(self, scenarios: set[str]) -> list[dict[str, Any]]:
        return [
            {
                "check": check.key,
                "rules": list(check.rules),
                "sentence": check.sentence,
                "verdict": self.verdict(check.key),
                "looked_at": self.looked_at.get(check.key, 0),
                "broken": self.broken.get(check.key, []),
            }
            for check in CHECKS
            if check.scenario in scenarios
        ]


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'rule':<6} {'check':<20} {'':<9} what"]
    for row in rows:
        numbers = ",".join(map(str, row["rules"]))
        lines.append(f"{numbers:<6} {row['check']:<20} {row['verdict']:<9} {row['sentence']}")
        lines += [f"{'':<38}✗ {broken}" for broken in row["broken"]]
    return "\n".join(lines)
