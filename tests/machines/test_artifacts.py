"""A large file on its way to real machines: pushed once, fetched once per host, also when it is cut on the way."""

import asyncio
import os
import secrets
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gpuaas_contract import oci
from gpuaas_sdk.errors import DeliveryFailedError
from gpuaas_sdk.registry import digest_of_file
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import kill, pid_of
from tests.machines.controller import Controller, controller_on
from tests.machines.slices import make, release
from tests.support.artifacts import promoted, push, signing_key
from tests.support.waiting import wait_until

SIZE = 300_000_000
PART = 90_000_000
SLACK = 25_000_000
"""Bytes that the registry has sent and a killed agent never read."""
NAMES = ["first", "second", "third"]


def sent_by_registry(stack: Stack) -> int:
    """Bytes that it has written since it started, nearly all of them to connections. Its guard has its name."""
    guard = pid_of(stack, "registry")
    (registry,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    lines = Path(f"/proc/{registry}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


@pytest.fixture
async def controllers(stack: Stack, cli: CommandLine, node: str) -> AsyncIterator[list[tuple[str, Controller]]]:
    """One on each of three machines of a project; what they share is the project."""
    made = make(cli, *NAMES).values()
    async with AsyncExitStack() as opened:
        found = []
        for machine in made:
            controller = controller_on(stack, machine["project_id"], machine["id"])
            found.append((machine["id"], await opened.enter_async_context(controller)))
        yield found
    release(cli, *NAMES)


async def test_three_machines_get_it_and_a_cut_delivery_goes_on(
    stack: Stack, cli: CommandLine, controllers: list[tuple[str, Controller]], tmp_path: Path
) -> None:
    file, key = tmp_path / "model.bin", signing_key()
    await asyncio.to_thread(_fill, file)
    (tmp_path / "key.pem").write_text(key.private)
    (tmp_path / "key.pub").write_text(key.public)
    cli.run("trusted-key", "add", "builds", str(tmp_path / "key.pub"))
    words = ["artifact", "push", str(file), "--name", "model", "--sign-key", str(tmp_path / "key.pem")]
    artifact = await asyncio.to_thread(cli.json, *words)
    assert (artifact["size"], artifact["content_digest"]) == (SIZE, await asyncio.to_thread(digest_of_file, file))
    first = controllers[0]
    with pytest.raises(DeliveryFailedError, match="only promoted ones are delivered"):
        await first[1].machines.machine(first[0]).deliver(artifact["digest"])
    cli.run("artifact", "verify", "model")
    assert cli.json("artifact", "promote", "model")["status"] == "promoted"

    name = artifact["content_digest"].replace(":", "-")
    cache = stack.settings.state_dir / "agent" / "artifacts"
    part, before = cache / f".{name}.part", sent_by_registry(stack)
    deliveries = asyncio.gather(*(own.machines.machine(id).deliver(artifact["digest"]) for id, own in controllers))
    await asyncio.to_thread(wait_until, lambda: _size(part) > PART, "a part has arrived", 120, every=0.002)
    assert not deliveries.done()
    kill(stack, "agent")
    arrived = _size(part)
    assert PART < arrived < SIZE, "it was not cut half-way"
    paths = await deliveries
    assert set(paths) == {f"/opt/gpuaas/artifacts/{name}"}
    sent = sent_by_registry(stack) - before
    print(f"cut after {arrived} bytes; the registry sent {sent} for a file of {SIZE}, to three machines")
    assert SIZE <= sent < SIZE + SLACK, "it began anew, or each machine fetched it"
    for (id, own), path in zip(controllers, paths, strict=True):
        seen = await own.machines.machine(id).read(f"sha256sum < {path}; touch {path} 2>&1 || echo read-only")
        assert seen.stdout.startswith(artifact["content_digest"].removeprefix("sha256:"))
        assert "read-only" in seen.stdout.lower()

    before = sent_by_registry(stack)
    for id, own in controllers:
        assert await own.machines.machine(id).deliver(artifact["digest"]) == paths[0]
    assert sent_by_registry(stack) - before < 100_000, "what the host has was fetched again"
    cli.run("artifact", "retire", "model")
    with pytest.raises(DeliveryFailedError, match="is retired; only promoted"):
        await first[1].machines.machine(first[0]).deliver(artifact["digest"])


def _fill(file: Path) -> None:
    with file.open("wb") as opened:
        for _ in range(SIZE // 1_000_000):
            opened.write(secrets.token_bytes(1_000_000))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


async def test_what_was_tampered_with_or_leads_out_reaches_no_machine(
    stack: Stack, controllers: list[tuple[str, Controller]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, own = controllers[0]
    machine = own.machines.machine(id)
    tampered = await promoted(own.admin, secrets.token_bytes(3_000_000), app_slug=own.app_slug)
    hexadecimal = tampered.content_digest.removeprefix("sha256:")
    blobs = stack.settings.registry_dir / "data/docker/registry/v2/blobs/sha256"
    descriptor = os.open(blobs / hexadecimal[:2] / hexadecimal / "data", os.O_RDWR)
    (byte,) = os.pread(descriptor, 1, 1_234_567)
    os.pwrite(descriptor, bytes([byte ^ 1]), 1_234_567)
    os.close(descriptor)
    with pytest.raises(DeliveryFailedError, match=f"what was downloaded as {tampered.content_digest} has the digest"):
        await machine.deliver(tampered.digest)

    with tarfile.open(tmp_path / "tree.tar", "w") as tar:
        link = tarfile.TarInfo("etc")
        link.type, link.linkname = tarfile.SYMTYPE, "../../../etc"
        tar.addfile(link)
    # A client that does not look into what it sends.
    monkeypatch.setattr("gpuaas_sdk.resources.artifacts.check_file", lambda path, media_type: None)
    key = signing_key()
    await own.admin.trusted_keys.add("hostile", key.public, app_slug=own.app_slug)
    content = (tmp_path / "tree.tar").read_bytes()
    made = await push(
        own.admin, content, name="tree", app_slug=own.app_slug, sign_key=key.private, media_type=oci.DIRECTORY
    )
    await own.admin.artifacts.verify(made.id)
    await own.admin.artifacts.promote(made.id)
    with pytest.raises(DeliveryFailedError, match="'etc' is a link out of the tree"):
        await machine.deliver(made.digest)
    assert (await machine.read("ls -A /opt/gpuaas/artifacts")).stdout == ""
