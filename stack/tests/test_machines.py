"""The slice image and an environment's part of LXD, on real machines."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gpuaas_agent import dnsmasq
from gpuaas_stack.image import SliceImage, ensure_image, ensure_imported, write_metadata
from gpuaas_stack.lxd import LxdEnvironment
from gpuaas_stack.lxd_client import talk
from gpuaas_stack.lxd_daemon import LxdDaemon
from gpuaas_stack.settings import ENVIRONMENT_TAG, Settings

pytestmark = pytest.mark.machines

# Beside what else is tested with machines, and beside other runs: the last of the range that this one was given.
_GIVEN = Settings()
*_, SUBNET = _GIVEN.subnet.subnets(new_prefix=24)
GATEWAY, ADDRESS = str(SUBNET[1]), str(SUBNET[10])
ENVIRONMENT = f"{_GIVEN.environment}-unit"
BRIDGE, NAME = f"gp{ENVIRONMENT}"[:15], f"{ENVIRONMENT}-1"
SETTINGS = Settings(environment=ENVIRONMENT, subnet=SUBNET, pool_size="3GiB")


@pytest.fixture
def lxd() -> Iterator[LxdEnvironment]:
    if not shutil.which("lxd"):
        pytest.skip("LXD is not installed: run scripts/setup")
    daemon = LxdDaemon(SETTINGS.lxd_socket, SETTINGS.lxd_run_dir)
    environment = LxdEnvironment(SETTINGS.lxd_socket, ENVIRONMENT, SETTINGS.storage_pool, SETTINGS.subnet)
    environment.ensure_route()
    daemon.acquire(ENVIRONMENT)
    environment.delete_everything()
    yield environment
    environment.delete_everything()
    daemon.release(ENVIRONMENT)
    environment.remove_route()


def inside(*command: str) -> subprocess.CompletedProcess[str]:
    argv = ["lxc", "exec", NAME, "--", *command]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)


def eventually(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.1)


def request(method: str, path: str, **options: Any) -> Any:
    return talk(SETTINGS.lxd_socket, f"{method} {path}", lambda lxd: lxd.request(method, path, **options))


def launch() -> None:
    network = {"ipv4.address": f"{GATEWAY}/24", "ipv4.nat": "false", "ipv6.address": "none"}
    config = {ENVIRONMENT_TAG: ENVIRONMENT}
    request("POST", "/1.0/networks", json={"name": BRIDGE, "config": network | config})
    devices = {
        "root": {"type": "disk", "path": "/", "pool": SETTINGS.storage_pool, "size": "1GiB"},
        "eth0": {"type": "nic", "network": BRIDGE, "name": "eth0", "ipv4.address": ADDRESS},
    }
    source = {"type": "image", "alias": SETTINGS.image_alias}
    body = {"name": NAME, "config": config, "devices": devices, "source": source, "profiles": []}
    request("POST", "/1.0/instances", json=body)
    request("PUT", f"/1.0/instances/{NAME}/state", json={"action": "start", "timeout": 60})


def running() -> bool:
    return inside("systemctl", "is-system-running").stdout.strip() == "running"


def addressed() -> bool:
    return f"inet {ADDRESS}/24" in inside("ip", "-4", "address", "show", "eth0").stdout


def test_environments_that_come_up_at_once_import_the_image_once(lxd: LxdEnvironment, tmp_path: Path) -> None:
    alias = f"{ENVIRONMENT}/empty"
    image = SliceImage(tmp_path / "recipe")
    (image.directory / "rootfs").mkdir(parents=True)
    subprocess.run(["mksquashfs", str(image.directory / "rootfs"), str(image.rootfs), "-quiet"], check=True)
    # Its time is in its fingerprint: an image that a killed run has left is another one.
    write_metadata(image.metadata, int(time.time()))
    try:
        with ThreadPoolExecutor(4) as pool:
            imported = list(pool.map(lambda _: ensure_imported(SETTINGS.lxd_socket, image, alias), range(4)))
        assert sorted(imported) == [False, False, False, True]
    finally:
        path = f"/1.0/images/aliases/{quote(alias, safe='')}"
        if known := talk(SETTINGS.lxd_socket, "find the image", lambda lxd: lxd.find(path)):
            request("DELETE", f"/1.0/images/{known['target']}")


def test_a_slice_boots_stops_and_comes_back(lxd: LxdEnvironment) -> None:
    image, _ = ensure_image(SETTINGS.image_cache)
    assert "Package: openssh-server\n" in image.dpkg_status.read_text()
    ensure_imported(SETTINGS.lxd_socket, image, SETTINGS.image_alias)
    assert ensure_imported(SETTINGS.lxd_socket, image, SETTINGS.image_alias) is False
    lxd.ensure_pool(SETTINGS.pool_size)
    lxd.ensure_pool(SETTINGS.pool_size)

    launch()
    eventually(running, "systemd to be running")
    eventually(addressed, "the pinned address")
    assert inside("ping", "-c1", "-W2", GATEWAY).returncode == 0
    # Its own name is its real address, for itself too.
    assert inside("getent", "hosts", NAME).stdout.split()[0] == ADDRESS
    # No key and no way in before the agent has put them there, and no way out.
    assert inside("sh", "-c", "ls /etc/ssh/ssh_host_*").returncode != 0
    assert inside("systemctl", "is-active", "ssh").stdout.strip() == "inactive"
    assert inside("sh", "-c", "cat /etc/apt/sources.list /etc/apt/sources.list.d/*").stdout == ""
    assert inside("id", "-u", "gpuaas").stdout.strip() == "10000"
    assert inside("su", "gpuaas", "-c", "sudo -n id -u").stdout.strip() == "0"

    # A name server that LXD has lost holds the address that LXD wants for another one.
    (SETTINGS.lxd_socket.parent / "networks" / BRIDGE / "dnsmasq.pid").unlink()
    assert not dnsmasq.is_running(SETTINGS.lxd_socket.parent, BRIDGE)
    lxd.ensure_networks_started()
    assert dnsmasq.is_running(SETTINGS.lxd_socket.parent, BRIDGE)
    assert inside("getent", "hosts", NAME).stdout.split()[0] == ADDRESS

    inside("touch", "/root/kept")
    assert lxd.stop_instances() == [NAME]
    assert lxd.stop_networks() == [BRIDGE]
    assert not lxd.link_exists(BRIDGE)
    assert lxd.stop_instances() == []

    lxd.ensure_networks_started()
    assert lxd.ensure_instances_resumed() == [NAME]
    assert lxd.ensure_instances_resumed() == []
    eventually(addressed, "the pinned address again")
    assert lxd.addresses([NAME, "another"]) == {NAME: ADDRESS}
    assert inside("test", "-e", "/root/kept").returncode == 0

    deleted = lxd.delete_everything()
    assert f"machine {NAME}" in deleted
    assert lxd.machines() == []
    assert not lxd.link_exists(BRIDGE)
