"""Who may push: the disk's reserve, the whole registry, one owner's share and one file's size, in this order."""

from pathlib import Path

import pytest

from gpuaas_contract.problems import Code
from gpuaas_platform.artifacts.adapters.space import Space
from gpuaas_platform.artifacts.rules.room import Room, RoomLimits, find_refusal, over_quota, too_large

LIMITS = RoomLimits(largest=10, of_one_owner=100, total=1_000, reserve=500)


@pytest.mark.parametrize(
    ("room", "code", "words"),
    [
        (Room("app x", 99, 999, 500), None, ""),
        (Room("app x", 99, 999, None), None, ""),
        (Room("app x", 0, 0, 499), Code.UNAVAILABLE, "499 bytes free, and 500 bytes are kept"),
        (Room("app x", 0, 1_000, 500), Code.UNAVAILABLE, "the registry is full: it holds 1000 bytes of 1000 bytes"),
        (Room("app x", 100, 999, 500), Code.QUOTA_EXCEEDED, "app x has 100 bytes in the registry"),
    ],
)
def test_before_a_push(room: Room, code: Code | None, words: str) -> None:
    refusal = find_refusal(room, LIMITS)
    assert (refusal and refusal.code) == code
    assert refusal is None or words in refusal.detail


def test_after_a_push() -> None:
    assert too_large(10, LIMITS) is None
    found = too_large(11, LIMITS)
    assert found is not None
    assert (found.code, "may have 10 bytes" in found.detail) == (Code.TOO_LARGE, True)
    assert over_quota(Room("project p", 100, 0, None), LIMITS) is None
    found = over_quota(Room("project p", 101, 0, None), LIMITS)
    assert found is not None
    assert (found.code, "project p would have 101 bytes" in found.detail) == (Code.QUOTA_EXCEEDED, True)


async def test_what_an_owner_has_on_the_disk(tmp_path: Path) -> None:
    """A file that two repositories name counts once, one that was freed does not, and an upload under way does."""
    root = tmp_path / "docker/registry/v2"

    def put(path: str, size: int = 0) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(bytes(size))

    for name, size in (("aa11", 10), ("bb22", 20)):
        put(f"blobs/sha256/{name[:2]}/{name}/data", size)
    for repository in ("apps/x/one", "apps/x/two", "projects/p/one"):
        put(f"repositories/{repository}/_layers/sha256/aa11/link")
    put("repositories/apps/x/one/_layers/sha256/cc33/link")
    put("repositories/apps/x/one/_uploads/some-id/data", 5)
    put("repositories/apps/y/one/_layers/sha256/bb22/link")
    space = Space(tmp_path)
    assert [await space.used_by(owner) for owner in ("apps/x", "apps/y", "projects/p", "apps/none")] == [15, 20, 10, 0]
    assert await space.total() == 35
    assert (await space.free() or 0) > 0


async def test_a_registry_that_cannot_be_seen(tmp_path: Path) -> None:
    assert not Space(None).is_known
    assert await Space(None).free() is None
    empty = Space(tmp_path / "not made yet")
    assert (await empty.used_by("apps/x"), await empty.total(), await empty.free()) == (0, 0, None)
