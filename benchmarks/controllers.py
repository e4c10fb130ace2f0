"""Two controllers for the same members, each a process of its own.

`runtime` is the SDK's: it follows the change feed, holds the reconcile lease of every instance and looks at each one
whenever something happened to it, and every so many seconds. `polling` is what one writes without it, in the manner of
kopf's timers: one timer for each member, which asks the platform for that member and compares. Neither finds anything
to change. What they see goes to standard output, a JSON object a line.

`python -m benchmarks.controllers NAME ACCOUNT-FILE SECONDS`"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path

from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import GpuaasError
from gpuaas_sdk.machines.base import MachineUnreachableError
from gpuaas_sdk.runtime.context import OperationContext
from gpuaas_sdk.runtime.controller import Controller
from gpuaas_sdk.runtime.observing import ObserveContext

POKE = "poke"


def say(**what: object) -> None:
    # The same clock in every process of this machine.
    print(json.dumps({"at": time.monotonic(), **what}), flush=True)


def is_as_wanted(member: Member) -> bool:
    """The comparison itself, which both do for each member."""
    wanted = {MemberStatus.READY, MemberStatus.PENDING}
    return member.status in wanted and all(condition.status != "false" for condition in member.conditions)


class NoMachines:
    """Looking at machines is the app's work, not the runtime's: neither side does it here."""

    async def prepare(self, allocation_ids: object = None) -> None:
        pass

    def machine(self, allocation_id: str) -> object:
        raise MachineUnreachableError(allocation_id)

    async def close(self) -> None:
        pass


async def run_runtime(client: GpuaasClient, seconds: float) -> None:
    async def poke(context: OperationContext) -> None:
        say(seen=context.operation_id)

    async def look(context: ObserveContext) -> None:
        say(looked=len([is_as_wanted(member) for member in context.live_members]))

    controller = Controller(
        client,
        {POKE: poke},
        machines=lambda client, claim: NoMachines(),  # type: ignore[arg-type, return-value]
        observe=look,
        observe_seconds=seconds,
        observed_machines=lambda client, claim, correlation: NoMachines(),  # type: ignore[arg-type, return-value]
    )
    await controller.run_until_signalled()


async def run_polling(client: GpuaasClient, seconds: float) -> None:
    project_id = (await client.principal()).project_id
    members = [
        member
        async for instance in client.instances.list(project_id=project_id, limit=200)
        async for member in client.instances.members(instance.id, limit=200)
    ]

    # As many as it can make use of: thousands of requests that wait for a connection hinder each other.
    places = asyncio.Semaphore(32)

    async def poll(member: Member) -> None:
        await asyncio.sleep(random.uniform(0, seconds))  # noqa: S311 - they do not ask in step
        known = member.last_operation_id
        while True:
            began = time.monotonic()
            try:
                async with places:
                    found = await client.members.get(member.id)
            except GpuaasError as error:
                say(failed=str(error))
            else:
                is_as_wanted(found)
                if found.last_operation_id != known:
                    known = found.last_operation_id
                    say(seen=known)
                say(looked=1)
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))

    await asyncio.gather(*(poll(member) for member in members))


async def main(name: str, file: str, seconds: float) -> None:
    async with GpuaasClient.from_service_account_file(Path(file)) as client:
        await {"runtime": run_runtime, "polling": run_polling}[name](client, seconds)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
