"""Every kind of operation that there is, by the reference app on real slices, and what its controller called for it."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuaas_conformance.proxy import FaultProxy
from gpuaas_contract.instances import Instance, InstanceDeploy, InstanceStatus, Member, MemberStatus, Placement
from gpuaas_contract.operations import Kind, Operation, OperationState
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.rollcall import SLUG, SMALL, Controllers, publish, roll
from tests.support.world import World

OPENAPI = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
NAMES = ["life-1", "life-2", "life-3"]
ELSEWHERE = {
    "POST /v1/credentials/{credential_id}/deliveries": "for external machines: tests/machines/test_external.py",
}
"""Routes for controllers that these machines give no reason to call."""


class RecordingApi:
    """The API as the controller sees it, in a thread of its own; every request is remembered."""

    def __init__(self, upstream: str) -> None:
        self.proxy = FaultProxy(upstream)
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        async with self.proxy:
            self._ready.set()
            await self._end.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def called(self) -> set[str]:
        return {f"{each.method} {each.path.partition('?')[0]}" for each in self.proxy.exchanges if each.accepted}


@pytest.fixture
def api(stack: Stack) -> Iterator[RecordingApi]:
    recording = RecordingApi(stack.settings.api_url)
    yield recording
    recording.close()


@pytest.fixture
def machines(cli: CommandLine, node: str) -> Iterator[dict[str, dict[str, Any]]]:
    yield {name: cli.json("allocation", "create", "--name", name, *SMALL, "--wait") for name in NAMES}
    for name in NAMES:
        cli.json("allocation", "release", name, "--yes", "--wait")


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

    async def is_degraded(self) -> bool:
        return any(c.type == "Degraded" and c.status == "true" for c in (await self.instance()).conditions)

    async def instance(self) -> Instance:
        return await self.admin.instances.get(self.id)

    async def member(self, allocation_id: str) -> Member:
        found = [m async for m in self.admin.instances.members(self.id) if m.allocation_id == allocation_id]
        return found[-1]


async def test_every_kind_of_operation(
    stack: Stack,
    cli: CommandLine,
    admin: GpuaasClient,
    api: RecordingApi,
    machines: dict[str, dict[str, Any]],
    tmp_path: Path,
) -> None:
    project_id = machines["life-1"]["project_id"]
    publish(cli, tmp_path)
    publish(cli, tmp_path, "1.1.0")
    account = tmp_path / "service-account.json"
    cli.run("service-account", "create", "life-controller", "--app", SLUG, "--file", str(account))
    controllers = Controllers(api.proxy.url, account, tmp_path / "controller.log")
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
        await World.until(life.is_degraded, "the controller sees it when it looks after the instance", 120)
        await life.do("recover", worker)
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
    assert life.kinds == {kind.value for kind in Kind}
    assert not_called(api.called()) == set(ELSEWHERE), "a route for controllers that the reference app does not call"


def not_called(called: set[str]) -> set[str]:
    """Of the routes whose permission is a controller's: those that nobody asked anything of."""
    paths = json.loads(OPENAPI.read_text())["paths"]
    routes = {
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method, route in methods.items()
        if route.get("x-permission") == "operation.work"
    }
    assert routes
    return {route for route in routes if not any(re.fullmatch(as_pattern(route), each) for each in called)}


def as_pattern(route: str) -> str:
    return re.sub(r"\{[a-z_]+\}", "[^/]+", route)
