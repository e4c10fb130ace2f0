"""`make up` on a platform that people have used since its first start."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.instances import InstanceDeploy, InstanceStatus, Placement
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_stack import demo
from gpuaas_stack.main import next_steps
from gpuaas_stack.progress import Progress
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from tests.support.controller import EchoController
from tests.support.world import World, make_key


@dataclass
class RunningStack:
    """A stack whose services run already; its node is simulated."""

    settings: Settings
    packs: tuple[()] = ()
    progress: Progress = field(default_factory=Progress)

    def start_agent(self) -> None: ...


@pytest.mark.own_platform("it lists all instances and machines that there are")
async def test_the_demo_is_made_once_and_then_its_peoples(
    world: World, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await world.admin.nodes.get(world.node.node_id)
    monkeypatch.setattr(demo, "NODE_NAME", node.name)
    own = settings.model_copy(update={"state_dir": tmp_path})
    own.join_token_file.parent.mkdir()
    own.join_token_file.touch()
    seed = demo.DemoSeed(cast(Stack, RunningStack(own)), world.admin)
    assert (await seed.run()).deployed == []
    machines = await demo_machines(world.admin)
    assert set(machines) == set(demo.MACHINES)

    instance_id = await deploy_again(world, machines)
    await world.admin.allocations.release(machines["demo-3"])
    found = await seed.run()
    assert [(each.instance.id, each.instance.status) for each in found.deployed] == [
        (instance_id, InstanceStatus.RUNNING)
    ]
    words = "\n".join(next_steps(own, found.deployed))
    assert "runs as [bold]again[/bold]" in words
    assert "ssh demo-1" in words
    assert "demo-3" not in await demo_machines(world.admin), "a machine that was released came back"

    await world.admin.instances.request(instance_id, "decommission")
    found = await seed.run()
    assert f"instance explain {found.deployed[0].instance.name}" in "\n".join(next_steps(own, found.deployed))
    assert len(await world.admin.instances.list().all()) == 1


async def demo_machines(admin: GpuaasClient) -> dict[str, str]:
    (project,) = [project async for project in admin.projects.list() if project.name == demo.NAME]
    found = admin.allocations.list(project_id=project.id)
    return {machine.name: machine.id async for machine in found if machine.status == AllocationStatus.ACTIVE}


async def deploy_again(world: World, machines: dict[str, str]) -> str:
    """As the README says: another instance, under another name, on the demo's machines."""
    machine = await world.admin.allocations.get(machines["demo-1"])
    tenant_id, project_id = machine.tenant_id, cast(str, machine.project_id)
    await world.admin.entitlements.grant(tenant_id, world.app_slug)
    private, public = make_key()
    account = await world.admin.service_accounts.create(project_id, "controller", public, app_slug=world.app_slug)
    placed: dict[str, Any] = {"placement_intent": [Placement(component_key="head", allocation_id=machine.id)]}
    request = InstanceDeploy(project_id=project_id, app_slug=world.app_slug, name="again", inputs={}, **placed)
    instance = await world.admin.instances.deploy(request)
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as controller:
        await EchoController(controller, project_id).run_all()
    return instance.id
