"""The runtime's observers against a real platform: two processes, one of which looks after each instance."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gpuaas_contract.instances import Condition, ConditionStatus, InstanceStatus, MemberStatus
from gpuaas_sdk import Controller, ObserveContext, OperationContext
from gpuaas_sdk.machines.base import MachineUnreachableError
from gpuaas_sdk.runtime.worker import Handler
from gpuaas_stack.settings import Settings
from tests.http.test_reconcile import expire
from tests.support.world import World


class NoMachines:
    """The machines of a simulated node: there are none."""

    async def prepare(self, allocation_ids: Collection[str] = ()) -> None: ...

    def machine(self, allocation_id: str) -> Any:
        raise MachineUnreachableError("there is no machine")

    async def close(self) -> None: ...


async def take_apart(operation: OperationContext) -> None:
    operation.statuses_on_success.update({member.id: MemberStatus.REMOVED for member in await operation.members()})


class Process:
    """A controller that observes, and what it saw. It takes every operation that it sees, also without a handler."""

    def __init__(self, world: World, name: str, every: float = 0.2, handlers: Mapping[str, Handler] = {}) -> None:
        self.name = name
        self.looks: list[str] = []
        self.fails = False
        self.controller = Controller(
            world.controller,
            handlers,
            holder=name,
            machines=lambda client, claim: NoMachines(),
            observe=self._observe,
            observe_seconds=every,
            observed_machines=lambda client, claim, correlation: NoMachines(),
        )

    async def _observe(self, context: ObserveContext) -> None:
        self.looks.append(context.instance_id)
        if self.fails:
            raise ValueError("a bug of the app")
        generation = context.instance.generation
        seen = Condition(type="Seen", status=ConditionStatus.TRUE, reason="Looked", observed_generation=generation)
        await context.report_instance(conditions=[seen], observed_runtime="7")
        for member in context.live_members:
            await context.report_member(member.id, adapter_detail={"by": self.name})

    @asynccontextmanager
    async def running(self) -> Any:
        task = asyncio.create_task(self.controller.run())
        try:
            yield self
        finally:
            self.controller.stop()
            await task


async def test_one_process_looks_and_the_other_takes_over(world: World, settings: Settings) -> None:
    first = await world.deploy(head=await world.allocation("one"), name="first")
    second = await world.deploy(head=await world.allocation("two"), name="second")
    one, two = (Process(world, name, handlers={"decommission": take_apart}) for name in ("one", "two"))

    async def holders() -> set[str | None]:
        leases = [(await world.admin.instances.get(id)).reconcile_lease for id in (first.id, second.id)]
        return {None if lease is None or lease.expired else lease.holder for lease in leases}

    async with two.running():
        async with one.running():
            await world.until(lambda: _has(one.looks + two.looks, first.id, second.id), "both are looked at")
            await world.until(lambda: _told(world, first.id), "what was seen is reported")
            assert None not in await holders()
            # A bug in the handler does not end the looking.
            one.fails = True
            seen = len(one.looks)
            if one.looks:
                await world.until(lambda: _longer(one.looks, seen + 1), "it looks again after a bug")
        # The lease goes back with the process: its successor need not wait until it runs out.
        await world.until(lambda: _are(holders, {"two"}), "the other process looks after both")
        # A lease that ran out, for whatever reason, is claimed again.
        expire(settings, first.id)
        await world.until(lambda: _are(holders, {"two"}), "it is claimed again")
        await world.admin.instances.request(first.id, "decommission")
        await world.until(lambda: _is_gone(world, first.id), "the first is decommissioned")
        seen = len(two.looks)
        await world.until(lambda: _longer(two.looks, seen + 3), "it goes on with the other")
        assert (await world.admin.instances.get(first.id)).reconcile_lease is None
        assert first.id not in two.looks[-2:]
    assert (await world.admin.instances.get(second.id)).reconcile_lease is None


async def test_what_happens_to_an_instance_is_looked_at_at_once(world: World) -> None:
    instance = await world.deploy(head=await world.allocation("one"))
    process = Process(world, "eager", every=600)
    async with process.running():
        await world.until(lambda: _longer(process.looks, 1), "it is looked at once")
        await world.admin.instances.request(instance.id, "decommission")
        await world.until(lambda: _longer(process.looks, 2), "it is looked at again, long before its turn")


async def _has(found: list[str], *ids: str) -> bool:
    return set(ids) <= set(found)


async def _is_gone(world: World, instance_id: str) -> bool:
    return (await world.admin.instances.get(instance_id)).status == InstanceStatus.DECOMMISSIONED


async def _longer(found: list[str], count: int) -> bool:
    return len(found) >= count


async def _are(find: Any, wanted: set[str]) -> bool:
    return bool(await find() == wanted)


async def _told(world: World, instance_id: str) -> bool:
    instance = await world.admin.instances.get(instance_id)
    (member,) = await world.admin.instances.members(instance_id).all()
    return "Seen" in [c.type for c in instance.conditions] and bool(member.adapter_detail)
