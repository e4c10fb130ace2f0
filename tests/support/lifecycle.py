"""An app that has every kind of operation, and instances of it."""

from dataclasses import dataclass
from typing import Any

from gpuaas_contract.allocations import Allocation
from gpuaas_contract.instances import Instance, Member
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Operation
from tests.support.controller import EchoController
from tests.support.world import MANIFEST, World

INSTANCE_KINDS = ["start", "stop", "restart", "upgrade", "configure", "rehearse"]
MEMBER_KINDS = ["drain", "resume", "remove", "recover", "tune"]
OPERATIONS: list[dict[str, Any]] = [
    {"kind": "deploy", "title": "Deploy"},
    {"kind": "add", "title": "Add a tail", "component": "tail"},
    {"kind": "decommission", "title": "Decommission"},
    *({"kind": kind, "title": kind.capitalize()} for kind in INSTANCE_KINDS),
    *({"kind": kind, "title": kind.capitalize(), "component": "tail"} for kind in MEMBER_KINDS),
    {"kind": "replace", "title": "Replace"},
]


def manifest(slug: str, version: str = "1.1.0", **changes: Any) -> Manifest:
    return Manifest.model_validate({**MANIFEST, "slug": slug, "version": version, "operations": OPERATIONS, **changes})


@dataclass
class Echo:
    """An instance of that app with its controller, which works only when it is told to."""

    world: World
    controller: EchoController
    id: str

    @classmethod
    async def deployed(cls, world: World, *tails: Allocation, head: Allocation, **changes: Any) -> "Echo":
        await world.admin.app_versions.publish(manifest(world.app_slug, **changes))
        instance = await world.deploy(*tails, head=head)
        echo = cls(world, EchoController(world.controller, world.project.id), instance.id)
        await echo.controller.run_all()
        return echo

    async def instance(self) -> Instance:
        return await self.world.admin.instances.get(self.id)

    async def status(self) -> str:
        return (await self.instance()).status.value

    async def members(self, *, removed: bool | None = False) -> list[Member]:
        return await self.world.admin.instances.members(self.id, removed=removed).all()

    async def tails(self) -> list[Member]:
        return [member for member in await self.members() if member.component_key == "tail"]

    async def member(self, member_id: str) -> Member:
        return await self.world.admin.members.get(member_id)

    async def request(self, kind: str, member: Member | None = None, *, queue: bool = False, **input: Any) -> Operation:
        member_id = None if member is None else member.id
        return await self.world.admin.instances.request(self.id, kind, member_id=member_id, input=input, queue=queue)

    async def run(self, kind: str, member: Member | None = None, **input: Any) -> Operation:
        """Ask for it, and have it done."""
        operation = await self.request(kind, member, **input)
        await self.controller.run(operation.id)
        return await self.operation(operation.id)

    async def operation(self, operation_id: str) -> Operation:
        return await self.world.admin.operations.get(operation_id)
