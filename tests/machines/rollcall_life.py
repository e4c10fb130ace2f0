"""The whole life of the reference app: every kind of operation, and what the world is like after each."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuaas_conformance.machines import WHAT_IS_THERE
from gpuaas_contract.instances import Instance, InstanceDeploy, InstanceStatus, Member, MemberStatus, Placement
from gpuaas_contract.operations import Kind, Operation, OperationState
from gpuaas_sdk.client import GpuaasClient
from tests.e2e.administrator import LOOK_EVERY
from tests.e2e.command_line import CommandLine
from tests.machines.rollcall import SLUG
from tests.support.waiting import until

NAMES = ["life-1", "life-2", "life-3"]
VERSIONS = ["2.0.0", "2.1.0"]
"""Of its own: another test may have published the app as it is."""
PATIENCE = 900
"""Also for an operation whose controller, or the API, is killed at each of its steps, on a busy machine."""
_USABLE = {InstanceStatus.RUNNING}
_STEADY = {InstanceStatus.RUNNING, InstanceStatus.STOPPED, InstanceStatus.DECOMMISSIONED}


@dataclass
class Life:
    admin: GpuaasClient
    cli: CommandLine
    machines: dict[str, dict[str, Any]]
    restart_controller: Callable[[], None]
    """As an update of it would: it is asked to end, and another one starts."""
    id: str = ""
    kinds: set[str] = field(default_factory=set)
    states: dict[str, Any] = field(default_factory=dict)
    """By what was done: what instance, members and daemons are then, and at some points all that is on the machines."""

    async def live(self) -> None:
        one, two, three = (self.machines[name]["id"] for name in NAMES)
        await self._deploy(one, two)
        worker = await self._member(two)
        await self._do("drain", worker)
        await self._do("resume", worker)
        await self._call_off("configure", inputs={"motto": "never mind"})
        await self._do("configure", inputs={"motto": "here"})
        await self._do("upgrade", version=VERSIONS[1])
        await self._note_machines("upgraded")
        await self._do("stop")
        await self._do("start")
        await self._do("restart", meanwhile=self.restart_controller)
        await self._repair("life-2")
        await self._resize(two)
        await self._do("replace", worker, allocation_id=three)
        await self._note_machines("replaced")
        await self._add_after_failure(two, "life-2")
        removed = await self._do("remove", await self._member(three))
        assert removed.result["receipt"]["ok"] is True
        receipt = (await self._do("decommission")).result["receipt"]
        assert receipt["ok"] is True
        assert {check["check"] for check in receipt["members"][0]["checks"]} >= {"units", "port", "processes", "paths"}
        await self._note_machines("decommissioned")

    async def _deploy(self, one: str, two: str) -> None:
        await self._note_machines("before")
        placement = [
            Placement(component_key="controller", allocation_id=one),
            Placement(component_key="worker", allocation_id=two),
        ]
        project_id = self.machines["life-1"]["project_id"]
        wanted = InstanceDeploy(
            project_id=project_id, app_slug=SLUG, version=VERSIONS[0], name="life", placement_intent=placement
        )
        await self._preflight(wanted)
        self.id = (await self.admin.instances.deploy(wanted)).id
        await self._settle()
        # The token is in a file that only the daemon reads.
        assert await self._ssh("life-1", "sudo stat -c '%a %U' /etc/rollcall/token") == "400 rollcall"
        await self._note("deploy")
        await self._note_machines("deployed")

    async def _preflight(self, wanted: InstanceDeploy) -> None:
        async def is_asked() -> str | None:
            return (await self.admin.preflights.deploy(wanted)).operation_id

        operation_id = await until(is_asked, "a controller is there to be asked", PATIENCE, LOOK_EVERY)
        looked = await self._ended(await self.admin.operations.get(operation_id))
        assert looked.result == {"findings": []}

    async def _repair(self, name: str) -> None:
        """It is the controller that notices and asks for it."""
        await self._ssh(name, "sudo systemctl stop rollcall-worker && sudo rm -rf /opt/rollcall")

        async def is_repaired() -> bool:
            return any([o.kind == Kind.RECOVER async for o in self.admin.operations.list(instance_id=self.id)])

        await until(
            is_repaired, "the controller, which looks after the instance, starts a repair", PATIENCE, LOOK_EVERY
        )
        await self._settle()
        assert await self._ssh(name, "systemctl is-active rollcall-worker") == "active"
        await self._note("recover")

    async def _resize(self, allocation_id: str) -> None:
        present = (await self.admin.allocations.get(allocation_id)).shape.memory_mib
        await self.admin.allocations.resize(allocation_id, cpus=1, memory_mib=640 if present == 512 else 512)
        await self._settle()
        await self._note("resize")

    async def _add_after_failure(self, allocation_id: str, name: str) -> None:
        """A machine that is not clean is left alone, and that is said; then it is cleaned."""
        await self._ssh(name, "sudo mkdir -p /opt/rollcall")
        bulk = await self.admin.instances.add_members(self.id, "worker", [allocation_id])
        failed = await self._over(await self.admin.operations.get(str(bulk.results[0].operation_id)))
        assert failed.error is not None
        assert failed.error.code == "machine_not_clean", failed.error
        await self._ssh(name, "sudo rm -rf /opt/rollcall")
        await self._ended(await self.admin.operations.retry(failed.id))
        await self._note("add")

    async def _do(
        self, kind: str, member: Member | None = None, *, meanwhile: Callable[[], None] | None = None, **input: Any
    ) -> Operation:
        member_id = None if member is None else member.id
        asked = await self.admin.instances.request(self.id, kind, member_id=member_id, input=input)
        if meanwhile is not None:
            await self._begun(asked)
            await asyncio.to_thread(meanwhile)
        ended = await self._ended(asked)
        await self._note(kind)
        return ended

    async def _call_off(self, kind: str, **input: Any) -> None:
        """In the middle: it ends between two steps, with the members as it left them."""
        asked = await self.admin.instances.request(self.id, kind, input=input)
        await self._begun(asked)
        await self.admin.operations.cancel(asked.id)
        await self._over(asked)

    async def _begun(self, operation: Operation) -> None:
        async def has_begun() -> bool:
            return bool((await self.admin.operations.get(operation.id)).steps)

        await until(has_begun, f"{operation.kind} has begun", PATIENCE, every=0.05)

    async def _over(self, operation: Operation) -> Operation:
        found = operation

        async def is_over() -> bool:
            nonlocal found
            found = await self.admin.operations.get(operation.id)
            return found.state.is_final

        await until(is_over, f"{operation.kind} ends", PATIENCE, LOOK_EVERY)
        return found

    async def _ended(self, operation: Operation) -> Operation:
        found = await self._over(operation)
        assert found.state == OperationState.SUCCEEDED, found.model_dump_json(indent=1)
        self.kinds.add(found.kind)
        return found

    async def _settle(self) -> None:
        async for operation in self.admin.operations.list(instance_id=self.id):
            if operation.state != OperationState.CANCELLED:
                await self._ended(operation)

    async def _note(self, done: str) -> None:
        """When nothing is under way any more, also nothing that the app has asked for itself."""
        instance = await until(self._steady_instance, f"the instance is steady after {done}", PATIENCE, LOOK_EVERY)
        members = self.admin.instances.members(self.id)
        names = {machine["id"]: name for name, machine in self.machines.items()}
        self.states[done] = {
            "status": instance.status,
            "runtime": instance.versions.observed_runtime,
            "members": sorted([(m.component_key, names[m.allocation_id], m.status) async for m in members]),
            "roll": await until(self._roll, "every worker beats", PATIENCE, LOOK_EVERY)
            if instance.status in _USABLE
            else {},
        }

    async def _steady_instance(self) -> Instance | None:
        open_ones = [o async for o in self.admin.operations.list(instance_id=self.id) if not o.state.is_final]
        instance = await self.admin.instances.get(self.id)
        return instance if not open_ones and instance.status in _STEADY else None

    async def _roll(self) -> dict[str, Any] | None:
        """Read what the daemons report of themselves, when all of them have reported since they were started."""
        said = json.loads(await self._ssh("life-1", "sudo /opt/rollcall/rollcall ask GET /health"))
        beats = [worker.pop("seconds_since_beat") for worker in said["workers"]]
        new = all(worker["version"] == said["version"] for worker in said["workers"])
        assert said.pop("instance") == self.id
        return said if new and max(beats, default=0) <= 3 else None

    async def _note_machines(self, when: str) -> None:
        self.states[when] = {name: (await self._ssh(name, WHAT_IS_THERE)).splitlines() for name in NAMES}

    async def _ssh(self, name: str, command: str) -> str:
        """As often as it takes: the way in may just be coming back."""

        async def done() -> subprocess.CompletedProcess[str] | None:
            said = await asyncio.to_thread(self.cli.call, "ssh", name, "--direct", "--", command)
            return said if said.returncode == 0 else None

        said = await until(done, f"{name} does {command}", PATIENCE, LOOK_EVERY)
        return str(said.stdout).strip()

    async def _member(self, allocation_id: str) -> Member:
        found = [m async for m in self.admin.instances.members(self.id) if m.allocation_id == allocation_id]
        return next(m for m in reversed(found) if m.status != MemberStatus.REMOVED)
