"""Which version signs, and how long an older one is believed."""

from datetime import UTC, datetime, timedelta

from gpuaas_platform.core.openbao import KeyVersion
from gpuaas_platform.identity.rules.signing_keys import (
    SETTLE,
    SLACK,
    TOKEN_SECONDS,
    believed_until,
    is_due,
    signing_version,
)

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def key(version: int, created_at: datetime) -> KeyVersion:
    return KeyVersion(str(version), created_at, b"")


def test_a_new_version_signs_once_everybody_can_know_it() -> None:
    versions = [key(10, START + DAY), key(9, START)]
    assert signing_version(versions, START + DAY + SETTLE / 2).version == "9"
    assert signing_version(versions, START + DAY + SETTLE).version == "10"
    assert signing_version([key(1, START)], START).version == "1"


def test_an_older_version_is_believed_as_long_as_its_last_token_lives() -> None:
    versions = [key(1, START), key(2, START + DAY), key(3, START + 2 * DAY)]
    life = SETTLE + timedelta(seconds=TOKEN_SECONDS) + SLACK
    assert believed_until(versions) == {"1": START + DAY + life, "2": START + 2 * DAY + life, "3": None}


def test_the_next_version_is_due_by_the_age_of_the_newest() -> None:
    versions = [key(1, START), key(2, START + 10 * DAY)]
    assert not is_due(versions, START + 30 * DAY, 30)
    assert is_due(versions, START + 40 * DAY, 30)
