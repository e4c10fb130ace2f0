"""Fixtures: sshd on this host, and one slice for the session."""

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from gpuaas_sdk.testing import VirtualTimeLoop

from .sdk_test_machines import SshdPlatform, have_sshd, make_host_key, sshd_config

ENVIRONMENT = f"sdk-{os.environ.get('GPUAAS_ENVIRONMENT', 'tests')}"
"""Another one for each run: those beside each other reap only what is their own."""
IMAGE = "gpuaas/debian-12"


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Leases in the tests of the runtime last parts of a second: in real time, they would end on a busy machine."""
    return (
        {"virtual-time": VirtualTimeLoop} if item.path.stem == "test_runtime" else {"real-time": asyncio.new_event_loop}
    )


@pytest.fixture
async def sshd(tmp_path: Path) -> AsyncIterator[SshdPlatform]:
    """sshd on this host, one process per connection, over pipes: no port is opened."""
    if not have_sshd() or os.geteuid() != 0:
        pytest.skip("needs openssh-server and root (apt-get install openssh-server)")
    Path("/run/sshd").mkdir(exist_ok=True)  # noqa: ASYNC240 - sshd insists on it
    config = tmp_path / "sshd_config"
    config.write_text(sshd_config(tmp_path))
    platform = SshdPlatform(tmp_path, ["/usr/sbin/sshd", "-i", "-f", str(config)])
    make_host_key(tmp_path, tmp_path / "authority")
    yield platform
    await platform.cut()


def run(*command: str, content: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, input=content or "")
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def reap() -> None:
    for instance in json.loads(run("lxc", "list", "-f", "json")):
        if instance["config"].get("user.gpuaas.environment") == ENVIRONMENT:
            run("lxc", "delete", "-f", instance["name"])


@pytest.fixture(scope="session")
def slice_name() -> Iterator[str]:
    """A machine as tenants get it, without a network: the tests speak SSH through `lxc exec`."""
    pool = os.environ.get("GPUAAS_TEST_POOL")
    if pool is None:
        pytest.skip("needs machines: make slices")
    reap()
    name = f"{ENVIRONMENT}-{secrets.token_hex(3)}"
    tag = f"user.gpuaas.environment={ENVIRONMENT}"
    run("lxc", "launch", IMAGE, name, "-s", pool, "-c", tag)
    yield name
    with contextlib.suppress(AssertionError):
        reap()


@pytest.fixture
async def slice_platform(slice_name: str, tmp_path: Path) -> AsyncIterator[SshdPlatform]:
    there = Path("/etc/ssh/sdktest")
    start = ["lxc", "exec", slice_name, "-T", "--", "/usr/sbin/sshd", "-i", "-f", str(there / "config")]
    platform = SshdPlatform(tmp_path, start)
    make_host_key(tmp_path, tmp_path / "authority")
    (tmp_path / "config").write_text(sshd_config(there))
    for file in ("host", "host-cert.pub", "authority.pub", "config"):
        source, target = str(tmp_path / file), f"{slice_name}{there}/{file}"
        run("lxc", "file", "push", "-q", "-p", "--mode=0600", "--uid=0", "--gid=0", source, target)
    run("lxc", "exec", slice_name, "--", "mkdir", "-p", "/run/sshd")
    yield platform
    await platform.cut()
