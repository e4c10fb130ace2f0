"""A registry that fills its disk, which is that of the database and the vault, too: a small file system of its own."""

import asyncio
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ApiError, TransportError
from gpuaas_sdk.retry import NO_RETRY
from gpuaas_stack.stack import Stack
from tests.support.artifacts import push, repository_access
from tests.support.database import connect
from tests.support.services import admin_credentials, own_stack
from tests.support.waiting import until

MIB = 1 << 20
DISK = 800 * MIB
RESERVE = 300 * MIB


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system in a file, mounted where services of other users reach it; in memory where there are no loops."""
    place = Path(tempfile.mkdtemp(prefix="gpuaas-disk-", dir="/var/tmp"))
    image, mounted = place / "image", place / "mounted"
    mounted.mkdir()
    place.chmod(0o755)
    try:
        with image.open("wb") as file:
            file.truncate(DISK)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        by_loop = subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=False, capture_output=True)
        if by_loop.returncode != 0:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(mounted)], check=True)
        mounted.chmod(0o755)
        try:
            yield mounted
        finally:
            subprocess.run(["umount", str(mounted)], check=True)
    finally:
        shutil.rmtree(place)


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    with small_disk() as disk:
        monkeypatch.setattr("tests.support.services.PARENT", disk)
        with own_stack("full", registry_reserve_gib=RESERVE / (1 << 30)) as stack:
            stack.ensure_platform()
            yield stack


def free(stack: Stack) -> int:
    return shutil.disk_usage(stack.settings.state_dir).free


async def works(stack: Stack, admin: GpuaasClient) -> None:
    """PostgreSQL and OpenBao take what is written to them."""
    tenant = await admin.tenants.create(f"ten-{secrets.token_hex(4)}")
    project = await admin.projects.create(tenant.id, "research")
    await admin.credentials.create(project.id, "outside")
    with connect(stack.settings) as database:
        database.execute("CREATE TABLE ballast AS SELECT repeat(md5(i::text), 32) FROM generate_series(1, 5000) AS i")
        database.execute("DROP TABLE ballast")


async def test_a_registry_that_fills_the_disk_stops_neither_the_database_nor_the_vault(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuaas_sdk.registry.ATTEMPTS", 2)
    credentials = PasswordCredentials(*admin_credentials(stack.settings))
    async with GpuaasClient(stack.settings.api_url, credentials, retry=NO_RETRY) as admin:
        kept = await push(admin, os.urandom(MIB), app_slug="kept")
        least = await flood(stack, admin)
        assert least > 0, "the disk was full, if only for a moment"
        await works(stack, admin)

        ballast = stack.settings.state_dir / "ballast"
        access = await repository_access(admin, kept.repository)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free(stack) - RESERVE + 16 * MIB)
        with pytest.raises(ApiError, match="kept for the platform"):
            await push(admin, b"one more", app_slug="kept")

        async def only_reads() -> bool:
            try:
                return (await access.post("blobs/uploads/")).status_code == 405
            except httpx.TransportError:
                return False

        await until(only_reads, "who has a token from before is refused, too", 60)
        read = await access.get(f"blobs/{kept.content_digest}")
        await access.aclose()
        assert (read.status_code, len(read.content)) == (200, MIB), "reads go on"
        await works(stack, admin)

        ballast.unlink()

        async def pushed() -> bool:
            try:
                await push(admin, b"one more", app_slug="kept")
            except (ApiError, TransportError):
                return False
            return True

        await until(pushed, "with room again it takes pushes", 60)


async def flood(stack: Stack, admin: GpuaasClient) -> int:
    """Send without an end with a token that was given while there was room; return the least that was free."""
    least = free(stack)

    async def endless() -> AsyncIterator[bytes]:
        nonlocal least
        piece = os.urandom(MIB)
        for _ in range(2 * DISK // MIB):
            yield piece
            least = min(least, free(stack))
            await asyncio.sleep(0)

    async with await repository_access(admin, "apps/flood/endless") as access:
        begun = await access.post("blobs/uploads/")
        with pytest.raises(httpx.TransportError):
            await access.patch(begun.headers["location"], content=endless(), timeout=120)

    async def has_room() -> bool:
        return free(stack) > RESERVE

    await until(has_room, "what nobody finished makes room", 60)
    return least
