"""A file on its way to a machine: through the platform, which verifies it, by `lxc file push`, and as a local copy.

What is measured on the platform's side begins with the request and ends when the controller has the path. Each round
has a file that no host has seen; the three take turns, so that whatever else the host does meets all of them."""

import asyncio
import hashlib
import secrets
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.machines.controller import Controller, controller_on
from tests.support.artifacts import promoted
from tests.support.services import admin_credentials

from benchmarks.slices import SHAPE, own_machines, until
from gpuaas_contract.allocations import Allocation, AllocationStatus
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack import platform_services
from gpuaas_stack.stack import Stack

ROUNDS = 3
SIZE = 100_000_000


async def machine_of(admin: GpuaasClient, stack: Stack) -> Allocation:
    tenant = await admin.tenants.create("bench")
    project = await admin.projects.create(tenant.id, "bench")
    platform_services.write_join_token(stack.settings, (await admin.join_tokens.create("bench")).token)
    await asyncio.to_thread(stack.start_agent)
    made = await admin.allocations.create(project.id, "target", shape=SHAPE)
    await until(admin, made.id, AllocationStatus.ACTIVE)
    return made


async def measure(controller: Controller, machine: Allocation, scratch: Path) -> dict[str, float]:
    content = secrets.token_bytes(SIZE)
    file = scratch / "file"
    file.write_bytes(content)
    artifact = await promoted(controller.admin, content, app_slug=controller.app_slug)
    took = {}

    started = time.perf_counter()
    path = await controller.machines.machine(machine.id).deliver(artifact.digest)
    took["platform"] = time.perf_counter() - started

    instance = machine.id.replace("_", "-")
    target = f"{instance}/root/{artifact.id}"
    started = time.perf_counter()
    await asyncio.to_thread(subprocess.run, ["lxc", "file", "push", "-q", str(file), target], check=True)
    took["lxc file push"] = time.perf_counter() - started

    started = time.perf_counter()
    await asyncio.to_thread(shutil.copyfile, file, scratch / "copy")
    took["local copy"] = time.perf_counter() - started

    started = time.perf_counter()
    await asyncio.to_thread(shutil.copyfile, file, scratch / "copy")
    digest = await asyncio.to_thread(lambda: hashlib.sha256((scratch / "copy").read_bytes()).hexdigest())
    took["local copy, hashed"] = time.perf_counter() - started
    assert f"sha256:{digest}" == artifact.content_digest

    started = time.perf_counter()
    assert await controller.machines.machine(machine.id).deliver(artifact.digest) == path
    took["platform, cached"] = time.perf_counter() - started
    await asyncio.to_thread(subprocess.run, ["lxc", "file", "delete", target], check=True)
    return took


async def compare(stack: Stack) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        credentials = PasswordCredentials(*admin_credentials(stack.settings))
        async with GpuaasClient(stack.settings.api_url, credentials) as admin:
            machine = await machine_of(admin, stack)
            async with controller_on(stack, machine.project_id or "", machine.id) as controller:
                await measure(controller, machine, Path(scratch))
                rounds = [await measure(controller, machine, Path(scratch)) for _ in range(ROUNDS)]
    medians = {name: statistics.median(took[name] for took in rounds) for name in rounds[0]}
    print(f"{SIZE / 1e6:.0f} MB to a machine, median of {ROUNDS}:")
    print(f"{'':24}{'s':>7}{'the platform against it':>26}")
    for name, seconds in medians.items():
        print(f"{name:24}{seconds:7.2f}{medians['platform'] / seconds:26.2f}")


if __name__ == "__main__":
    with own_machines(name="bench-artifacts", first_port=8610, subnet="10.101.0.0/16") as own:
        asyncio.run(compare(own))
