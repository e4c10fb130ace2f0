"""The agent with real volumes: killed at a step, it converges; done twice, nothing is doubled."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from gpuaas_contract.ids import ALLOCATION, VOLUME, new_id

from .agent_test_host import AgentProcess
from .agent_test_platform import Platform
from .test_machines import create_spec, delete_spec, inside, name_of

pytestmark = [
    pytest.mark.machines,
    pytest.mark.xdist_group("agent-machines"),
    pytest.mark.filterwarnings("ignore:EdDSA is deprecated"),
]

Look = Callable[[], list[str]]


def mount(volume_id: str, *, make: bool = True) -> dict[str, Any]:
    return {"volume_id": volume_id, "path": "/data", "size_gib": 1, "make": make}


def attach_spec(allocation_id: str, volume_id: str, *, make: bool = True) -> dict[str, Any]:
    return {"kind": "attach_volume", "allocation_id": allocation_id, "volume": mount(volume_id, make=make)}


async def killed_at(platform: Platform, agent: AgentProcess, spec: dict[str, Any], step: str) -> None:
    """Kill the agent as soon as the step has begun, and wait for what its successor makes of the task."""
    seen = len(platform.progress)
    task_id = await platform.send_task(spec)
    await platform.until(lambda: step in [p.step for p in platform.progress[seen:]], f"step {step}")
    await agent.end(signal.SIGKILL)
    agent.start()
    result = await platform.result_of(task_id)
    assert result.ok, result.message


async def test_killed_at_every_step_converges(platform: Platform, agent: AgentProcess, leftovers: Look) -> None:
    machine, volume, lost = new_id(ALLOCATION), new_id(VOLUME), new_id(VOLUME)
    assert (await platform.run_task(create_spec(machine))).ok
    await killed_at(platform, agent, attach_spec(machine, volume), "volume")
    assert await inside(machine, "grep -c ' /data ' /proc/mounts; echo kept > /data/file") == "1"
    assert (await platform.run_task(attach_spec(machine, volume, make=False))).ok, "done twice is done"
    detach = {"kind": "detach_volume", "allocation_id": machine, "volume_id": volume}
    await killed_at(platform, agent, detach, "detach")
    assert await inside(machine, "grep -c ' /data ' /proc/mounts") == "0"
    assert (await platform.run_task(detach)).ok
    await killed_at(platform, agent, attach_spec(machine, volume, make=False), "attach")
    assert await inside(machine, "cat /data/file; grep -c ' /data ' /proc/mounts") == "kept\n1"

    missing = await platform.run_task(attach_spec(machine, lost, make=False))
    assert not missing.ok
    assert "is not on this host any more" in missing.message
    used = await platform.run_task({"kind": "delete_volume", "volume_id": volume})
    assert not used.ok
    assert f"it is attached to {name_of(machine)}" in used.message

    assert (await platform.run_task(delete_spec(machine))).ok
    assert leftovers() == [name_of(volume)], "a volume stays when its machine goes"
    await agent.end(signal.SIGTERM)
    agent.start()
    await platform.until(lambda: platform.hellos[-1].volume_ids == [volume], "the agent says what it has")
    await killed_at(platform, agent, {"kind": "delete_volume", "volume_id": volume}, "delete")
    assert leftovers() == []


@pytest.mark.parametrize("step", ["volume", "instance", "start"])
async def test_killed_while_a_machine_is_made_with_a_volume(
    platform: Platform, agent: AgentProcess, leftovers: Look, step: str
) -> None:
    machine, volume = new_id(ALLOCATION), new_id(VOLUME)
    await killed_at(platform, agent, {**create_spec(machine), "volumes": [mount(volume)]}, step)
    assert await inside(machine, "grep -c ' /data ' /proc/mounts; stat -c %u:%g /data") == "1\n0:0"
    assert sorted(name for name in leftovers() if name.startswith("vol")) == [name_of(volume)]
    assert (await platform.run_task(delete_spec(machine))).ok
    assert (await platform.run_task({"kind": "delete_volume", "volume_id": volume})).ok
    assert leftovers() == []
