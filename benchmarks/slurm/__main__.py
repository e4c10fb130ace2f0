"""`make bench-slurm`: a Slurm cluster by the app, by a bare shell script, and by Ansible.

From asking for it to the first row in sacct, on two fresh slices: MariaDB, slurmdbd, slurmctld and a worker on the
first, a worker on the second. In turns, three rounds, the median of each; the ratios are of the same round. The same
slices, packages and configuration for all; the first round of the app also brings the packages to the host.

- the app: from POST /v1/app-instances until the instance is running, as whoever asked sees it
- bare: benchmarks/slurm/machine.sh, on both machines at once, by `lxc exec`
- Ansible: benchmarks/slurm/playbook.yml, ansible-core from PyPI, over SSH

Then a worker is added and removed and the cluster taken apart, by the app (which also proves what it says) and by the
bare script. Printed, never asserted. `python -m benchmarks.slurm 1 app bare steps` runs one round without Ansible and
shows where the app's time goes."""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from tests.support.services import admin_credentials

from benchmarks.slices import delete_instances, lxc, own_machines
from benchmarks.slurm.floor import IMAGE, NAMES, Floor, scratch_directory
from benchmarks.slurm.ours import Ours
from gpuaas_contract.allocations import Shape
from gpuaas_contract.operations import Operation
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.packs import read_pack
from gpuaas_stack.stack import Stack

WORDS = sys.argv[1:]
ROUNDS = next((int(word) for word in WORDS if word.isdigit()), 3)
WHO = [whose for whose in ("bare", "app", "Ansible") if whose.lower() in WORDS] or ["bare", "app", "Ansible"]
SHAPE = Shape(cpus=2, memory_mib=2048, disk_gib=4)
PACK = read_pack(Path(__file__).parents[2] / "apps" / "slurm")
DEPLOY, ADD, REMOVE, DECOMMISSION = "to the first sacct row", "add a worker", "remove a worker", "decommission"
T = TypeVar("T")


class Times:
    """Of each kind of work, by whom, in the order of the rounds."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = {}

    async def of(self, work: str, whose: str, doing: Awaitable[T]) -> T:
        began = time.perf_counter()
        done = await doing
        seconds = time.perf_counter() - began
        self._seconds.setdefault((work, whose), []).append(seconds)
        print(f"  {whose:8} {work:24} {seconds:6.2f} s", flush=True)
        return done

    def median(self, work: str, whose: str) -> float:
        return statistics.median(self._seconds[work, whose])

    def ratio(self, work: str, one: str, other: str) -> float:
        pairs = zip(self._seconds[work, one], self._seconds[work, other], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def show_steps(operations: list[Operation]) -> None:
    begun = min(operation.created_at for operation in operations)
    for operation in operations:
        for step in operation.steps:
            assert step.ended_at is not None
            at, seconds = (step.started_at - begun).total_seconds(), (step.ended_at - step.started_at).total_seconds()
            ran = ", ".join(f"{each.name} {each.seconds:.2f}" for each in step.commands)
            print(f"    {operation.kind:8} at {at:6.2f} {step.key:22} {seconds:6.2f} s   {ran}")


async def round_of_ours(ours: Ours, times: Times, turn: int) -> None:
    machines = await ours.machines(turn)
    instance = await times.of(DEPLOY, "app", ours.deploy(machines, turn))
    if "steps" in WORDS:
        show_steps(await ours.operations(instance))
    await times.of(ADD, "app", ours.add(instance, machines[2]))
    if turn == ROUNDS - 1:
        looks, members = await ours.looks(), len(await ours.members(instance))
        print(
            f"  a look at a cluster in which nothing changed: {looks.seconds / members * 1000:.1f} ms for each of "
            f"{members} members, of these {looks.cpu_seconds / members * 1000:.1f} ms CPU of the controller "
            "(goal: under 50)",
            flush=True,
        )
    await times.of(REMOVE, "app", ours.remove(instance, machines[2]))
    await times.of(DECOMMISSION, "app", ours.decommission(instance))
    if "steps" in WORDS:
        show_steps([op for op in await ours.operations(instance) if op.kind in {"remove", "decommission"}])
    await ours.release(machines)


async def round_of_bare(floor: Floor, image: str, times: Times) -> None:
    addresses = await floor.launch(3, image)
    await times.of(DEPLOY, "bare", floor.bare_deploy(addresses))
    await times.of(ADD, "bare", floor.bare_add(addresses))
    began = time.perf_counter()
    lxc("exec", NAMES[0], "--", "scontrol", "--oneliner", "show", "node")
    print(f"  bare: one `scontrol show node`: {(time.perf_counter() - began) * 1000:.0f} ms")
    await times.of(REMOVE, "bare", floor.bare_remove())
    await times.of(DECOMMISSION, "bare", floor.bare_decommission())
    delete_instances(NAMES)


async def round_of_ansible(floor: Floor, times: Times) -> None:
    addresses = await floor.launch(2, IMAGE)
    await times.of(DEPLOY, "Ansible", floor.ansible_deploy(addresses))
    delete_instances(NAMES)


def report(times: Times) -> None:
    print(f"\nmedian of {ROUNDS}, seconds; ratios of the same round")
    if {"app", "bare"} <= set(WHO):
        print(f"{'':26}{'app':>8}{'bare':>8}{'times':>7}")
        for work in (DEPLOY, ADD, REMOVE, DECOMMISSION):
            goal = "  goal: at most 1.2" if work == DEPLOY else ""
            numbers = f"{times.median(work, 'app'):8.2f}{times.median(work, 'bare'):8.2f}"
            print(f"{work:26}{numbers}{times.ratio(work, 'app', 'bare'):7.2f}{goal}")
    if {"app", "Ansible"} <= set(WHO):
        faster = times.ratio(DEPLOY, "Ansible", "app")
        print(f"Ansible {times.median(DEPLOY, 'Ansible'):.2f}: the app is {faster:.2f} times faster  goal: at least 3")


async def compare(stack: Stack, scratch: Path) -> None:
    assert stack.image is not None
    bundle = scratch / "bundle.tar"
    PACK.build_bundle(bundle, stack.image.dpkg_status)
    credentials = PasswordCredentials(*admin_credentials(stack.settings))
    times = Times()
    try:
        floor = await asyncio.to_thread(Floor, stack.settings, SHAPE, bundle, stack.image.dpkg_status, scratch)
        async with GpuaasClient(stack.settings.api_url, credentials) as admin:
            ours = Ours(stack, admin, PACK, SHAPE)
            await ours.publish(await asyncio.to_thread(bundle.read_bytes))
            for turn in range(ROUNDS):
                print(f"round {turn + 1}, load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
                if "bare" in WHO:
                    await round_of_bare(floor, stack.settings.image_alias, times)
                if "app" in WHO:
                    await round_of_ours(ours, times, turn)
                if "Ansible" in WHO:
                    await round_of_ansible(floor, times)
        report(times)
    finally:
        Floor.remove()


if __name__ == "__main__":
    Floor.remove()
    with (
        own_machines(name="bench-slurm", first_port=8740, subnet="10.104.0.0/16") as own,
        scratch_directory() as directory,
    ):
        asyncio.run(compare(own, Path(directory)))
