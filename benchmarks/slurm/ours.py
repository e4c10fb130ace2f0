"""The same cluster by the app: its own process with its own account, through the public API and the platform."""

import asyncio
import statistics
import time
from dataclasses import dataclass

import yaml
from tests.support.artifacts import promoted
from tests.support.world import make_key

from benchmarks.slices import until
from gpuaas_contract.allocations import Allocation, AllocationStatus, Shape
from gpuaas_contract.instances import Instance, InstanceDeploy, InstanceStatus, Member, MemberStatus, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Operation, OperationState
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.runtime.controller import Controller
from gpuaas_sdk.runtime.observing import ObserveContext
from gpuaas_stack import platform_services
from gpuaas_stack.packs import Pack
from gpuaas_stack.stack import Stack
from slurm_app.reconcilers import observe

POLL_SECONDS = 0.1
LOOKS = 20


@dataclass(frozen=True)
class Looks:
    """Seconds of one look at one cluster, and CPU seconds of the controller for it, its reads of the platform too."""

    seconds: float
    cpu_seconds: float


class Ours:
    def __init__(self, stack: Stack, admin: GpuaasClient, pack: Pack, shape: Shape) -> None:
        self._stack = stack
        self._admin = admin
        self._pack = pack
        self._shape = shape
        self._project_id = ""

    async def publish(self, bundle: bytes) -> None:
        """Set up once, as an operator: the host, a project, the app's version with its packages, and its controller."""
        admin, settings = self._admin, self._stack.settings
        platform_services.write_join_token(settings, (await admin.join_tokens.create("bench")).token)
        await asyncio.to_thread(self._stack.start_agent)
        tenant = await admin.tenants.create("bench")
        self._project_id = (await admin.projects.create(tenant.id, "bench")).id
        manifest = Manifest.model_validate(yaml.safe_load(self._pack.manifest_path.read_text()))
        (slot,) = manifest.artifacts
        made = await promoted(admin, bundle, app_slug=manifest.slug, media_type=slot.media_type)
        slots = [slot.model_copy(update={"digest": made.digest})]
        await admin.app_versions.publish(manifest.model_copy(update={"artifacts": slots}))
        await admin.entitlements.grant(tenant.id, manifest.slug)
        private, public = make_key()
        account = await admin.service_accounts.create(self._project_id, "controller", public, app_slug=manifest.slug)
        platform_services.write_service_account(settings, manifest.slug, account.id, private)
        await asyncio.to_thread(self._stack.start_controller, self._pack)

    async def machines(self, turn: int) -> list[Allocation]:
        names = [f"{letter}{turn}" for letter in "abc"]
        made = await asyncio.gather(
            *(self._admin.allocations.create(self._project_id, name, shape=self._shape) for name in names)
        )
        await asyncio.gather(*(until(self._admin, machine.id, AllocationStatus.ACTIVE) for machine in made))
        return list(made)

    async def release(self, machines: list[Allocation]) -> None:
        await asyncio.gather(*(self._admin.allocations.release(machine.id) for machine in machines))
        await asyncio.gather(*(until(self._admin, machine.id, AllocationStatus.RELEASED) for machine in machines))

    async def deploy(self, machines: list[Allocation], turn: int) -> Instance:
        """Until the instance is running, as whoever asked for it sees it: after the first row in sacct."""
        one, two = machines[:2]
        places = [("controller", one), ("worker", one), ("worker", two)]
        request = InstanceDeploy(
            project_id=self._project_id,
            app_slug=self._pack.slug,
            name=f"bench-{turn}",
            placement_intent=[Placement(component_key=key, allocation_id=machine.id) for key, machine in places],
        )
        instance = await self._admin.instances.deploy(request)
        while instance.status == InstanceStatus.DEPLOYING:
            await asyncio.sleep(POLL_SECONDS)
            instance = await self._admin.instances.get(instance.id)
        if instance.status != InstanceStatus.RUNNING:
            refuse_failed(await self.operations(instance))
            raise RuntimeError(f"{instance.name} is {instance.status}")
        return instance

    async def add(self, instance: Instance, machine: Allocation) -> None:
        bulk = await self._admin.instances.add_members(instance.id, "worker", [machine.id])
        (result,) = bulk.results
        assert result.operation_id is not None, result
        await self._ended(result.operation_id)

    async def remove(self, instance: Instance, machine: Allocation) -> None:
        (member,) = [member for member in await self.members(instance) if member.allocation_id == machine.id]
        asked = await self._admin.instances.request(instance.id, "remove", member_id=member.id)
        await self._ended(asked.id)

    async def decommission(self, instance: Instance) -> None:
        await self._ended((await self._admin.instances.request(instance.id, "decommission")).id)

    async def members(self, instance: Instance) -> list[Member]:
        found = await self._admin.instances.members(instance.id).all()
        return [member for member in found if member.status != MemberStatus.REMOVED]

    async def operations(self, instance: Instance) -> list[Operation]:
        return await self._admin.operations.list(instance_id=instance.id).all()

    async def _ended(self, operation_id: str) -> None:
        while (found := await self._admin.operations.get(operation_id)).state != OperationState.SUCCEEDED:
            refuse_failed([found])
            await asyncio.sleep(POLL_SECONDS)

    async def looks(self) -> Looks:
        """Looks at clusters in which nothing changed, by the app's own observer and the SDK's runtime.

        In this process, which does nothing else meanwhile, and while the app's controller is away: its CPU is ours."""
        took: list[float] = []
        cpu: list[float] = []
        done = asyncio.Event()

        async def timed(context: ObserveContext) -> None:
            began = time.perf_counter()
            await observe.observe(context)
            took.append(time.perf_counter() - began)
            cpu.append(time.process_time())
            if len(took) > LOOKS:
                done.set()

        await asyncio.to_thread(self._stack.supervision.remove_service, f"controller-{self._pack.slug}")
        file = self._stack.settings.service_account_file(self._pack.slug)
        async with GpuaasClient.from_service_account_file(file) as client:
            controller = Controller(client, {}, observe=timed, observe_seconds=0.05)
            running = asyncio.create_task(controller.run())
            await done.wait()
            controller.stop()
            await running
        await asyncio.to_thread(self._stack.start_controller, self._pack)
        # The first one logs in.
        return Looks(statistics.median(took[1:]), (cpu[-1] - cpu[0]) / (len(cpu) - 1))


def refuse_failed(operations: list[Operation]) -> None:
    for operation in operations:
        if operation.state in {OperationState.FAILED, OperationState.CANCELLED}:
            raise RuntimeError(f"{operation.kind} {operation.state}: {operation.error}")
