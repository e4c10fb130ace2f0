"""Pushes that are cut, refused and repeated: they go on where they were, and nothing is half there."""

import asyncio
import hashlib
import json
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuaas_contract import oci
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import InvalidRequestError, TransportError
from gpuaas_sdk.registry import digest_of_file
from gpuaas_stack.settings import Settings
from tests.e2e.command_line import CommandLine
from tests.support.artifacts import push, repository_access
from tests.support.processes import ApiProcess
from tests.support.relay import Relay, relay_to
from tests.support.services import admin_credentials, own_stack

SIZE = 24_000_000
HALF = 9_000_000
SLACK = 600_000
"""Requests, and what was on its way when it was cut."""


@dataclass
class Behind:
    """A platform whose registry is reached through a relay."""

    relay: Relay
    admin: GpuaasClient
    cli: CommandLine
    app_slug: str


@pytest.fixture
def relayed(settings: Settings) -> Iterator[tuple[Relay, str]]:
    with (
        relay_to(settings.registry_port) as relay,
        ApiProcess(settings, registry_url=relay.url).serving() as url,
    ):
        yield relay, url


@pytest.fixture
async def behind(settings: Settings, relayed: tuple[Relay, str], tmp_path: Path) -> AsyncIterator[Behind]:
    relay, url = relayed
    email, password = admin_credentials(settings)
    cli = CommandLine(tmp_path)
    login = ["login", "--api-url", url, "--email", email, "--password-stdin"]
    await asyncio.to_thread(cli.run, *login, stdin=password)
    async with GpuaasClient(url, PasswordCredentials(email, password)) as admin:
        yield Behind(relay, admin, cli, f"some-app-{secrets.token_hex(4)}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(secrets.token_bytes(SIZE))
    return path


async def test_a_push_that_was_killed_goes_on_where_it_stopped(behind: Behind, file: Path) -> None:
    relay, words = behind.relay, ["artifact", "push", str(file), "--name", "model", "--app", behind.app_slug]
    relay.limit = HALF
    first = behind.cli.start(*words)
    try:
        assert await asyncio.to_thread(relay.hangs.wait, 60), "the push came to half of the file"
    finally:
        first.kill()
        first.communicate()
    assert await behind.admin.artifacts.list(app_slug=behind.app_slug).all() == [], "half of a file is nothing yet"
    before, relay.limit = relay.sent, None
    done = await asyncio.to_thread(behind.cli.call, *words)
    assert done.returncode == 0, done
    assert "goes on after" in done.stderr
    assert relay.sent - before < SIZE - HALF + SLACK, "it sent again what was there"
    (made,) = await behind.admin.artifacts.list(app_slug=behind.app_slug).all()
    assert made.content_digest == digest_of_file(file)
    before = relay.sent
    again = await asyncio.to_thread(behind.cli.call, *words)
    assert "is in the registry already" in again.stderr
    assert relay.sent - before < SLACK


async def test_a_connection_that_breaks_is_taken_up_again_by_itself(behind: Behind, file: Path) -> None:
    behind.relay.limit, behind.relay.breaks = HALF, True
    told: list[int] = []
    made = await behind.admin.artifacts.push("model", file, app_slug=behind.app_slug, on_progress=told.append)
    assert made.size == SIZE
    assert behind.relay.limit is None, "the connection never broke"
    assert behind.relay.sent < SIZE + SLACK
    assert told[-1] == SIZE


async def test_a_registry_that_is_away_is_said_and_the_push_goes_on_later(
    behind: Behind, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuaas_sdk.registry.ATTEMPTS", 2)
    behind.relay.away = True
    with pytest.raises(TransportError, match="cannot reach the registry"):
        await behind.admin.artifacts.push("model", file, app_slug=behind.app_slug)
    assert await behind.admin.artifacts.list(app_slug=behind.app_slug).all() == []
    behind.relay.away = False
    assert (await behind.admin.artifacts.push("model", file, app_slug=behind.app_slug)).size == SIZE


async def test_one_file_pushed_by_two_programs_at_once_is_one_artifact(behind: Behind, file: Path) -> None:
    words = ["artifact", "push", str(file), "--name", "model", "--app", behind.app_slug]
    both = await asyncio.gather(*(asyncio.to_thread(behind.cli.call, *words) for _ in range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    (made,) = await behind.admin.artifacts.list(app_slug=behind.app_slug).all()
    assert made.size == SIZE


async def test_two_pushes_of_one_tag_at_once_are_each_whole(admin: GpuaasClient) -> None:
    repository = oci.repository_of("tagged", app_slug="some-app")
    async with await repository_access(admin, repository) as registry:
        await _put(registry, oci.EMPTY_CONTENT)
        for _ in range(10):
            contents = [secrets.token_bytes(200_000) for _ in range(2)]
            digests = await asyncio.gather(*(_push_tag(registry, content) for content in contents))
            tagged = await registry.get("manifests/latest", headers={"Accept": oci.MANIFEST})
            assert f"sha256:{hashlib.sha256(tagged.content).hexdigest()}" in digests
            registering = (admin.artifacts.register("tagged", digest, app_slug="some-app") for digest in digests)
            made = await asyncio.gather(*registering)
            expected = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in contents]
            assert [artifact.content_digest for artifact in made] == expected


async def _put(registry: httpx.AsyncClient, content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    started = await registry.post("blobs/uploads/")
    url = httpx.URL(registry.base_url).join(started.headers["location"]).copy_merge_params({"digest": digest})
    assert (await registry.put(url, content=content)).status_code == 201
    return {"digest": digest, "size": len(content)}


async def _push_tag(registry: httpx.AsyncClient, content: bytes) -> str:
    layer = {"mediaType": oci.FILE, **await _put(registry, content)}
    config = {"mediaType": oci.EMPTY, "digest": oci.EMPTY_DIGEST, "size": 2}
    document = {"schemaVersion": 2, "mediaType": oci.MANIFEST, "config": config, "layers": [layer]}
    manifest = json.dumps(document).encode()
    put = await registry.put("manifests/latest", content=manifest, headers={"Content-Type": oci.MANIFEST})
    assert put.status_code == 201
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


async def test_the_digest_of_a_file_is_not_that_of_an_artifact(admin: GpuaasClient) -> None:
    made = await push(admin, b"a file", app_slug="some-app")
    with pytest.raises(InvalidRequestError, match="is a file; name the manifest"):
        await admin.artifacts.register("packages", made.content_digest, app_slug="some-app")


async def test_a_full_disk_is_said_and_the_push_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuaas_sdk.registry.ATTEMPTS", 3)
    file = tmp_path / "file"
    file.write_bytes(secrets.token_bytes(SIZE))
    with own_stack("full-registry", registry_reserve_gib=0) as stack:
        data = stack.settings.registry_dir / "data"
        data.mkdir(parents=True)
        command("mount", "-t", "tmpfs", "-o", "size=12m", "gpuaas-test", str(data))
        try:
            stack.ensure_platform()
            credentials = PasswordCredentials(*admin_credentials(stack.settings))
            async with GpuaasClient(stack.settings.api_url, credentials) as admin:
                notes = tmp_path / "notes"
                with pytest.raises(TransportError, match="No space left on device"):
                    await admin.artifacts.push("model", file, app_slug="one", resume_dir=notes)
                assert await admin.artifacts.list(app_slug="one").all() == []
                command("mount", "-o", "remount,size=80m", str(data))
                made = await admin.artifacts.push("model", file, app_slug="one", resume_dir=notes)
                assert made.size == SIZE
        finally:
            stack.supervision.remove_service("registry")
            command("umount", str(data))


def command(*words: str) -> None:
    subprocess.run(words, check=True)
