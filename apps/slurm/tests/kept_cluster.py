"""A cluster on real slices, made by the shipped reconcilers; it goes back to its first state when a test needs that."""

import asyncio
import secrets
from collections.abc import Sequence

from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_contract.operations import Operation

from .lxc_machine import LxcMachine, stop
from .memory_platform import CONTROLLER, WORKER, MemoryPlatform
from .real_machine import wait_for
from .slices import Slices


class Cluster:
    """The controller on one slice, and a worker on each of the given ones, the controller's among them or not."""

    STATE = "cluster"

    def __init__(self, slices: Slices, digest: str, head: LxcMachine, workers: tuple[LxcMachine, ...]) -> None:
        self.slices = slices
        self.head = head
        self.workers = workers
        self.machines = tuple({machine.hostname: machine for machine in (head, *workers)}.values())
        self.spoiled = False
        """A test failed on it."""
        self.platform = MemoryPlatform(slices.directory, digest)
        self.platform.place(CONTROLLER, head)
        for worker in workers:
            self.platform.place(WORKER, worker)
        self._kept = self.platform

    async def keep(self) -> None:
        """Stopped cleanly, so that databases and daemons find all that they had."""
        await asyncio.gather(*(stop(machine.hostname) for machine in self.machines))
        for machine in self.machines:
            await self.slices.keep(machine, self.STATE)
        self._kept = self.platform.copy()
        await self.go_back()

    async def go_back(self) -> None:
        self.spoiled = False
        self.platform = self._kept.copy()
        async with asyncio.TaskGroup() as group:
            for machine in self.machines:
                group.create_task(self.slices.go_back(machine, self.STATE, self))
        await self.wait_until_idle()

    async def rest(self) -> None:
        """Nobody needs it any more."""
        await asyncio.gather(*(stop(machine.hostname, force=True) for machine in self.machines))

    async def ensure_as_kept(self) -> None:
        """No job, and every worker of the beginning there and idle."""
        if not await self._is_usable(self.workers):
            await self.go_back()

    async def ensure_without(self, worker: LxcMachine) -> None:
        """The same, but for one worker that has been removed."""
        if not await self._is_usable([machine for machine in self.workers if machine is not worker]):
            await self.ensure_as_kept()
            await self.run("remove", worker, timeout_seconds=60)

    async def ensure_decommissioned(self) -> None:
        gone = all(member.status == MemberStatus.REMOVED for member in self.platform.found.values())
        if not gone or not self._is_ours:
            await self.ensure_as_kept()
            await self.run("decommission")

    @property
    def _is_ours(self) -> bool:
        return not self.spoiled and all(self.slices.is_owner(machine, self) for machine in self.machines)

    async def _is_usable(self, workers: Sequence[LxcMachine]) -> bool:
        """As far as one look tells."""
        live = [member for member in self.platform.found.values() if member.status != MemberStatus.REMOVED]
        if not self._is_ours or any(member.status != MemberStatus.READY for member in live):
            return False
        there = sorted(member.allocation_id for member in live if member.component_key == WORKER)
        if len(live) != len(workers) + 1 or there != sorted(worker.allocation_id for worker in workers):
            return False
        return (await self.head.read(_idle(workers))).ok

    async def wait_until_idle(self) -> None:
        await wait_for(self.head, "every worker to be idle", _idle(self.workers), seconds=180)

    def worker(self, machine: LxcMachine) -> Member:
        return self.platform.member_on(machine)

    async def run(self, kind: str, machine: LxcMachine | None = None, **wanted: object) -> Operation:
        """On the worker of this machine, or on the whole cluster."""
        return await self.platform.run(kind, None if machine is None else self.worker(machine), wanted)

    async def states(self) -> dict[str, str]:
        result = await self.head.read("timeout 10 sinfo --noheader --Node --format='%N %T'")
        assert result.ok, result.stderr
        # One that the scheduler has something in mind for is idle until then.
        return dict(line.replace(" planned", " idle").split() for line in result.stdout.splitlines())

    async def submit(self, machine: LxcMachine, command: str = "sleep 1000") -> str:
        """A job of an ordinary user, which runs there now."""
        script = (
            f"cd /; runuser -u gpuaas -- sbatch --parsable --output=/dev/null --nodelist={machine.hostname} "
            f"--wrap='{command}'"
        )
        result = await self.head.read(script)
        assert result.ok, result.stderr
        job = result.stdout.strip()
        await wait_for(self.head, f"job {job} to run", f"squeue --noheader --jobs={job} --format=%T | grep -x RUNNING")
        return job

    async def state_of(self, job: str) -> str:
        return (await self.head.read(f"timeout 10 squeue --noheader --jobs={job} --format=%T || true")).stdout.strip()

    async def wait_until_saved(self, job: str) -> None:
        """slurmctld writes jobs down some seconds after a change: until then a kill takes the change along."""
        mark = f"saved-{secrets.token_hex(4)}"
        assert (await self.head.read(f"timeout 10 scontrol update jobid={job} comment={mark}")).ok
        await wait_for(self.head, f"slurmctld to save job {job}", f"grep -q {mark} /var/lib/slurm/slurmctld/job_state")

    async def cancel(self, job: str) -> None:
        assert (await self.head.read(f"scancel {job}")).ok
        await wait_for(self.head, f"job {job} to end", f"! squeue --noheader --jobs={job} 2>/dev/null | grep -q .")


def _idle(workers: Sequence[LxcMachine]) -> str:
    names = ",".join(sorted(worker.hostname for worker in workers))
    return (
        '[ -z "$(timeout 10 squeue --noheader)" ]; '
        "said=$(timeout 10 sinfo --noheader --Node --format='%N %T'); echo \"$said\"; "
        f'[ "$(sed -n "s/ idle$//p" <<<"$said" | sort | paste -sd,)" = {names} ]; '
        f'[ "$(wc -l <<<"$said")" = {len(workers)} ]'
    )


async def read_pids(machine: LxcMachine, *units: str) -> list[str]:
    return (await machine.read(f"systemctl show --property=MainPID --value {' '.join(units)}")).stdout.split()
