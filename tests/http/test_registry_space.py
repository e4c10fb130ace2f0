"""Space in the registry, on a stack of its own: it is started anew to collect garbage."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gpuaas_contract import oci
from gpuaas_contract.artifacts import Artifact
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import TransportError, UnavailableError
from gpuaas_sdk.registry import RegistryClient, UploadNotes, digest_of_file
from gpuaas_sdk.retry import NO_RETRY
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from tests.support.artifacts import push, repository_access
from tests.support.services import admin_credentials, own_stack


def blob(settings: Settings, artifact: Artifact) -> Path:
    _, _, hexadecimal = artifact.content_digest.partition(":")
    blobs = settings.state_dir / "registry/data/docker/registry/v2/blobs/sha256"
    return blobs / hexadecimal[:2] / hexadecimal / "data"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Of this module: its registry is stopped and started, and all its garbage is collected."""
    with own_stack("garbage") as stack:
        stack.ensure_platform()
        yield stack


async def test_a_deleted_artifact_is_freed_and_the_others_are_kept(stack: Stack) -> None:
    credentials = PasswordCredentials(*admin_credentials(stack.settings))
    async with GpuaasClient(stack.settings.api_url, credentials) as admin:
        kept = await push(admin, b"kept", app_slug="one")
        deleted = await push(admin, b"deleted", app_slug="one")
        await admin.artifacts.delete(deleted.id)
        assert blob(stack.settings, deleted).exists()
        assert "freed" in stack.collect_garbage()
        assert not blob(stack.settings, deleted).exists()
        assert blob(stack.settings, kept).read_bytes() == b"kept"
        # It takes pushes again, and the name is free.
        await push(admin, b"deleted", app_slug="one")


async def test_it_only_reads_while_garbage_is_collected(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = PasswordCredentials(*admin_credentials(stack.settings))
    async with GpuaasClient(stack.settings.api_url, credentials, retry=NO_RETRY) as admin:
        kept = await push(admin, b"kept", app_slug="two")
        access = await repository_access(admin, kept.repository)
        collect, seen = stack.registry.collect_garbage, list[object]()

        def meanwhile() -> str:
            with httpx.Client(base_url=access.base_url, headers=access.headers) as registry:
                seen.append(registry.get(f"manifests/{kept.digest}", headers={"Accept": oci.MANIFEST}).status_code)
                seen.append(registry.post("blobs/uploads/").status_code)
            seen.append(asyncio.run_coroutine_threadsafe(refused(), loop).result(60))
            return collect()

        async def refused() -> str:
            with pytest.raises(UnavailableError) as deleting:
                await admin.artifacts.delete(kept.id)
            with pytest.raises(TransportError) as pushing:
                await push(admin, b"pushed meanwhile", app_slug="two")
            return f"{deleting.value}; {pushing.value}"

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(stack.registry, "collect_garbage", meanwhile)
        monkeypatch.setattr("gpuaas_sdk.registry.ATTEMPTS", 1)
        await asyncio.to_thread(stack.collect_garbage)
        assert seen[:2] == [200, 405]
        assert "takes no changes just now" in str(seen[2])
        assert "the registry is read-only: garbage is collected" in str(seen[2])
        await admin.artifacts.delete(kept.id)
        assert (await push(admin, b"pushed meanwhile", app_slug="two")).size == len(b"pushed meanwhile")


class StoppedError(Exception):
    pass


async def test_a_push_goes_on_where_an_earlier_one_stopped(admin: GpuaasClient, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 4_000)
    url, repository = (await admin.registry.get()).url, "apps/one/resumed"

    async def token() -> str:
        return (await admin.registry.token(repository, push=True)).token

    def stop(sent: int) -> None:
        if sent == 300_000:
            raise StoppedError

    async def upload(on_progress: Callable[[int], None]) -> None:
        notes = UploadNotes(tmp_path / "notes")
        async with RegistryClient(url, repository, token, notes=notes, chunk=100_000) as registry:
            await registry.push_file(file, digest_of_file(file), on_progress)

    seen: list[int] = []
    with pytest.raises(StoppedError):
        # The third chunk is whole when it is stopped: this registry loses what is cut inside of one.
        await upload(stop_after_whole_chunk(stop))
    await upload(seen.append)
    assert seen[0] == 300_000
    assert seen[-1] == file.stat().st_size


def stop_after_whole_chunk(stop: Callable[[int], None]) -> Callable[[int], None]:
    """Progress is told twice at the end of a chunk: when all of it was read, and when the registry has it."""
    told: set[int] = set()

    def show(sent: int) -> None:
        if sent in told:
            stop(sent)
        told.add(sent)

    return show
