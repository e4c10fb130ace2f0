"""Every kind of operation that there is, by the reference app on real slices."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuaas_contract.instances import Instance, InstanceDeploy, InstanceStatus, Member, MemberStatus, Placement
from gpuaas_contract.operations import Kind, Operation, OperationState
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.rollcall import SLUG, SMALL, Controllers, publish, roll
from tests.support.world import World

NAMES = ["life-1", "life-2", "life-3"]


@pytest.fixture
def machines(cli: CommandLine, node: str) -> Iterator[dict[str, dict[str, Any]]]:
    yield {name: cli.json("allocation", "create", "--name", name, *SMALL, "--wait") for name in NAMES}
    for name in NAMES:
        cli.json("allocation", "release", name, "--yes", "--force", "--wait")


@pytest.fixture
async def admin(stack: Stack) -> AsyncIterator[GpuaasClient]:
    password = stack.settings.admin_password_file.read_text().strip()
    async with GpuaasClient(stack.settings.api_url, PasswordCredentials(ADMIN_EMAIL, password)) as client:
        yield client


class Life:
    def __init__(self, admin: GpuaasClient, instance: Instance) -> None:
        self.admin = admin
        self.id = instance.id
        self.kinds: set[str] = set()

    async def ended(self, operation: Operation) -> Operation:
        found = operation

        async def is_over() -> bool:
            nonlocal found
            found = await self.admin.operations.get(operation.id)
            return found.state.is_final

        await World.until(is_over, f"{operation.kind} ends", 120)
        assert found.state == OperationState.SUCCEEDED, found.model_dump_json(indent=1)
        self.kinds.add(found.kind)
        return found

    async def do(self, kind: str, member: Member | None = None, **input: Any) -> Operation:
        member_id = None if member is None else member.id
        return await self.ended(await self.admin.instances.request(self.id, kind, member_id=member_id, input=input))

    async def settle(self) -> None:
        async for operation in self.admin.operations.list(instance_id=self.id):
            await self.ended(operation)

    async def is_repaired(self) -> bool:
        return any([o.kind == Kind.RECOVER async for o in self.admin.operations.list(instance_id=self.id)])

    async def instance(self) -> Instance:
        return await self.admin.instances.get(self.id)

    async def member(self, allocation_id: str) -> Member:
        found = [m async for m in self.admin.instances.members(self.id) if m.allocation_id == allocation_id]
        return found[-1]


async def test_every_kind_of_operation(
    stack: Stack,
    cli: CommandLine,
    admin: GpuaasClient,
    machines: dict[str, dict[str, Any]],
    tmp_path: Path,
) -> None:
    project_id = machines["life-1"]["project_id"]
    publish(cli, tmp_path)
    publish(cli, tmp_path, "1.1.0")
    account = tmp_path / "service-account.json"
    cli.run("service-account", "create", "life-controller", "--app", SLUG, "--file", str(account))
    controllers = Controllers(stack.settings.api_url, account, tmp_path / "controller.log")
    controllers.start()
    one, two, three = (machines[name]["id"] for name in NAMES)
    try:
        placement = [
            Placement(component_key="controller", allocation_id=one),
            Placement(component_key="worker", allocation_id=two),
        ]
        wanted = InstanceDeploy(
            project_id=project_id, app_slug=SLUG, version="1.0.0", name="life", placement_intent=placement
        )
        life = Life(admin, await admin.instances.deploy(wanted))
        await life.settle()
        assert (await life.instance()).status == InstanceStatus.RUNNING
        worker = await life.member(two)

        await life.do("drain", worker)
        assert roll(cli, "life-1")["workers"][0]["state"] == "drained"
        assert (await life.member(two)).status == MemberStatus.DRAINED
        await life.do("resume", worker)
        assert roll(cli, "life-1")["workers"][0]["state"] == "active"

        await life.do("configure", inputs={"motto": "here"})
        assert roll(cli, "life-1")["motto"] == "here"
        await life.do("upgrade", version="1.1.0")
        assert roll(cli, "life-1")["version"] == "1.1.0"
        assert (await life.instance()).versions.observed_runtime == "1.1.0"

        await life.do("stop")
        assert (await life.instance()).status == InstanceStatus.STOPPED
        assert cli.ssh("life-2", "systemctl is-active rollcall-worker || true").strip() == "inactive"
        await life.do("start")
        await life.do("restart")
        assert (await life.instance()).status == InstanceStatus.RUNNING

        cli.ssh("life-2", "sudo systemctl stop rollcall-worker && sudo rm -r /opt/rollcall")
        await World.until(life.is_repaired, "the controller, which looks after the instance, starts a repair", 120)
        await life.settle()
        assert cli.ssh("life-2", "systemctl is-active rollcall-worker").strip() == "active"

        await admin.allocations.resize(two, cpus=1, memory_mib=640)
        await life.settle()

        await life.do("replace", worker, allocation_id=three)
        assert [w["name"] for w in roll(cli, "life-1")["workers"]] == ["life-3"]
        await admin.instances.add_members(life.id, "worker", [two])
        await life.settle()
        removed = await life.do("remove", await life.member(three))
        assert removed.result["receipt"]["ok"] is True
        assert [w["name"] for w in roll(cli, "life-1")["workers"]] == ["life-2"]

        ended = await life.do("decommission")
        assert ended.result["receipt"]["ok"] is True
    except BaseException:
        print(f"the controller said:\n{controllers.log.read_text()[-8_000:]}")
        raise
    finally:
        controllers.end()
    # A preflight is not requested as such: it comes with the question whether something would work.
    assert life.kinds == {kind.value for kind in Kind} - {Kind.PREFLIGHT}
