"""Compare the entries that people of an instance are to have with those that were made."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuaas_platform.access.records import GrantView, WantedEntry

MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class Difference:
    gone: Sequence[GrantView]
    new: Sequence[WantedEntry]


def compare_entries(wanted: Sequence[WantedEntry], made: Sequence[GrantView], locked: Collection[str]) -> Difference:
    """Only on machines whose lock is held: one that was added meanwhile is for the next round."""
    keys = {(entry.user_id, entry.allocation_id, entry.account_only) for entry in wanted}
    kept = {(row.user_id, row.allocation_id, row.account_only) for row in made}
    return Difference(
        gone=[row for row in made if (row.user_id, row.allocation_id, row.account_only) not in keys],
        new=[
            entry
            for entry in wanted
            if entry.allocation_id in locked and (entry.user_id, entry.allocation_id, entry.account_only) not in kept
        ],
    )


def words_of(came: Sequence[str], left: Sequence[str]) -> str:
    """Say who came and left, with a few of the names."""
    parts = [
        f"{_names(logins)} {verb}" for logins, verb in ((came, "may use it"), (left, "may not any more")) if logins
    ]
    return "; ".join(parts) or "their roles or entries changed"


def _names(logins: Sequence[str]) -> str:
    shown = ", ".join(logins[:MOST_NAMES])
    return shown if len(logins) <= MOST_NAMES else f"{shown} and {len(logins) - MOST_NAMES} more"
