"""Which versions of the token key sign, which are still believed, and when the next one is due."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from gpuaas_platform.core.openbao import KeyVersion

TOKEN_SECONDS = 3600
"""The longest that an access token lives."""
SETTLE = timedelta(seconds=10)
"""A new version signs only after this long: by then every process knows it, and believes what it signed."""
SLACK = timedelta(minutes=1)
"""For clocks that differ."""


def in_order(versions: Sequence[KeyVersion]) -> list[KeyVersion]:
    return sorted(versions, key=lambda key: int(key.version))


def signing_version(versions: Sequence[KeyVersion], now: datetime) -> KeyVersion:
    """The newest that has settled; on a fresh platform, the first."""
    ordered = in_order(versions)
    settled = [key for key in ordered if key.created_at + SETTLE <= now]
    return settled[-1] if settled else ordered[0]


def believed_until(versions: Sequence[KeyVersion]) -> dict[str, datetime | None]:
    """An older version as long as its last token can live; the newest without an end."""
    ordered = in_order(versions)
    ends: dict[str, datetime | None] = {
        key.version: following.created_at + SETTLE + timedelta(seconds=TOKEN_SECONDS) + SLACK
        for key, following in pairwise(ordered)
    }
    return {**ends, ordered[-1].version: None}


def is_due(versions: Sequence[KeyVersion], now: datetime, most_days: float) -> bool:
    return in_order(versions)[-1].created_at + timedelta(days=most_days) <= now
