"""The inventory of this host, read anew for each connection."""

import os
import shutil
import socket
from pathlib import Path

from gpuaas_agent.gpus import find_gpu_devices
from gpuaas_agent.kernel_limits import CAVEATS
from gpuaas_agent.lxd import Lxd
from gpuaas_agent.settings import Settings
from gpuaas_contract.allocations import ShapeKind
from gpuaas_contract.nodes import Capacity, Inventory

GIB = 1024**3


async def read_inventory(settings: Settings, lxd: Lxd) -> Inventory:
    environment = (await lxd.read_server())["environment"]
    gpu_devices = find_gpu_devices(settings.gpu_devices)
    return Inventory(
        capacity=Capacity(
            cpus=offered_cpus(settings),
            memory_mib=read_memory_mib(),
            disk_gib=await lxd.read_pool_bytes(settings.storage_pool) // GIB,
            gpus=len(gpu_devices),
        ),
        gpu_devices=gpu_devices,
        virtualisation=f"{environment['server']} {environment['server_version']}",
        images=await lxd.read_image_aliases(),
        default_image=settings.image_alias,
        caveats=list(CAVEATS),
    )


def offered_cpus(settings: Settings) -> int:
    return max(1, int(len(os.sched_getaffinity(0)) * settings.cpu_overcommit))


def read_host_inventory(settings: Settings) -> Inventory:
    """Read the inventory of a host that is handed over itself: all of it or nothing."""
    gpu_devices = find_gpu_devices(settings.gpu_devices)
    return Inventory(
        capacity=Capacity(
            cpus=len(os.sched_getaffinity(0)),
            memory_mib=read_memory_mib(),
            disk_gib=shutil.disk_usage("/").total // GIB,
            gpus=len(gpu_devices),
        ),
        gpu_devices=gpu_devices,
        virtualisation="none",
        offers=[ShapeKind.HOST],
        address=read_address(),
    )


def read_address() -> str:
    """Read the address of this host towards the rest of the world. Nothing is sent: UDP only looks up the route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("198.51.100.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(sock.getsockname()[0])


def read_memory_mib() -> int:
    return parse_memory_mib(Path("/proc/meminfo").read_text())


def parse_memory_mib(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    raise ValueError("/proc/meminfo has no MemTotal")
