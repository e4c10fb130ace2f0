"""The command line of apps on a real platform, with a controller beside it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpuaas_contract.operations import OperationError, StepStatus
from gpuaas_stack.settings import Settings
from tests.e2e.command_line import CommandLine
from tests.support.lifecycle import Echo
from tests.support.services import admin_credentials
from tests.support.world import World


@pytest.fixture
def cli(settings: Settings, world: World, tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path, environment={"TZ": "UTC", "GPUAAS_PROJECT": world.project.id})
    email, password = admin_credentials(settings)
    line.run("login", "--api-url", settings.api_url, "--email", email, "--password-stdin", stdin=password + "\n")
    return line


async def said(cli: CommandLine, *words: str, code: int = 0) -> str:
    """Run a command and return its output on both streams; the test's own loop goes on meanwhile."""
    done = await asyncio.to_thread(cli.call, *words)
    assert done.returncode == code, f"gpuaas {' '.join(words)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


async def found(cli: CommandLine, *words: str) -> Any:
    done = await asyncio.to_thread(cli.call, *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_members_one_and_many(world: World, cli: CommandLine) -> None:
    head, one, _, _ = [await world.allocation(name) for name in ("head", "one", "two", "three")]
    echo = await Echo.deployed(world, one, head=head)
    added = await found(cli, "member", "add", "greeter", "tail", "two", "three", "--policy", "1")
    assert [result["state"] for result in added["results"]] == ["pending", "pending"]
    await echo.controller.run_all()
    listed = await said(cli, "member", "list", "greeter")
    assert [name in listed for name in ("head", "one", "two", "three")] == [True] * 4
    draining = asyncio.create_task(said(cli, "member", "drain", "greeter", "one", "tail=two", "--wait"))

    async def drained() -> bool:
        await echo.controller.run_all()
        return draining.done()

    await world.until(drained, "both members are drained", 60)
    assert "succeeded" in await draining
    assert "there is no allocation 'nowhere'" in await said(cli, "member", "drain", "greeter", "nowhere", code=3)
    refused = await said(cli, "member", "resume", "greeter", "three", code=5)
    assert "next" in refused or "code" in refused
    stopped = await found(cli, "instance", "stop", "greeter")
    queued = await found(cli, "instance", "start", "greeter", "--queue")
    assert (queued["queued"], queued["waits_for"]) == (True, [stopped["id"]])
    cancelled = await found(cli, "operation", "cancel", queued["id"])
    assert cancelled["state"] == "cancelled"
    await echo.controller.run_all()
    assert "stopped" in await said(cli, "instance", "show", "greeter")


async def test_a_preflight_lists_what_stands_in_the_way(world: World, cli: CommandLine) -> None:
    await world.allocation("one")
    words = ["instance", "preflight", world.app_slug, "--name", "first"]
    refused = await said(cli, *words, "--place", "head=one", "--place", "tail=one", "--input", "greeting=7", code=2)
    assert "not of type 'string'" in refused
    fine = await said(cli, *words, "--place", "head=one")
    assert "deploy would work: no blocking findings." in fine
    assert "has never been connected" in fine
    echo = await Echo.deployed(world, head=(await world.admin.allocations.list(project_id=world.project.id).all())[0])
    adding = ["member", "preflight", "greeter", "add", "one"]
    assert "--component is missing" in await said(cli, *adding, code=2)
    assert "would not work" in await said(cli, *adding, "--component", "nose", code=2)
    assert await echo.status() == "running"


async def test_explain_events_and_trace(world: World, cli: CommandLine) -> None:
    instance = await world.deploy(head=await world.allocation())
    waiting = await said(cli, "instance", "explain", "greeter")
    assert "has never been connected" in waiting
    (operation_id,) = await world.claimable()
    claim = await world.controller.operations.claim(operation_id, "test")
    work = world.controller.operations
    await work.report_step(
        operation_id, claim.fencing_token, key="greet", title="Greet", status=StepStatus.FAILED, evidence={"exit": 3}
    )
    error = OperationError(code="no_voice", detail="the machine is hoarse", retryable=True)
    await work.fail(operation_id, claim.fencing_token, error)
    explained = await said(cli, "instance", "explain", "greeter")
    for part in (
        "deploy failed at the step 'Greet': the machine is hoarse",
        instance.id,
        operation_id,
        instance.correlation_id,
        '"exit": 3',
        f"gpuaas operation retry {operation_id} --wait",
        f"gpuaas instance decommission {instance.id} --yes --wait",
    ):
        assert part in explained, explained
    assert (await found(cli, "instance", "explain", "greeter"))["operation"]["id"] == operation_id
    events = await found(cli, "instance", "events", "greeter", "--event", "step_", "--since", "1h")
    assert [event["event"] for event in events] == ["step_failed"]
    assert len(await found(cli, "instance", "events", "greeter", "--last", "2")) == 2
    assert "cannot read the time 'yesterday'" in await said(
        cli, "instance", "events", "greeter", "--since", "yesterday", code=2
    )
    traced = await said(cli, "trace", instance.correlation_id)
    assert "app_instance.deploy" in traced
    assert "step       deploy: Greet" in traced
    assert "there is no trace" in await said(cli, "trace", "never-seen-1", code=3)
