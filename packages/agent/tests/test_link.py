"""The link over a real WebSocket, without machines."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.identity import Identity, load_or_make_key, public_key_pem
from gpuaas_agent.link import Link, Outbox
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.slices import Progress
from gpuaas_agent.tasks import TaskRunner
from gpuaas_contract.agent_link import OpenStream, SetLeases, SliceReport, TaskMessage
from gpuaas_contract.ids import ALLOCATION, new_id
from gpuaas_contract.nodes import Capacity, Inventory

from .agent_test_platform import Platform

pytestmark = pytest.mark.filterwarnings("ignore:EdDSA is deprecated")

INVENTORY = Inventory(capacity=Capacity(cpus=2, memory_mib=1024, disk_gib=10, gpus=0), virtualisation="lxd 5.0.2")


class Linked:
    """An agent whose tasks do nothing but count."""

    def __init__(self, platform: Platform, tmp_path: Path, api: PlatformApi | None = None) -> None:
        if api is None:
            key = load_or_make_key(tmp_path)
            platform.node_key = public_key_pem(key)
            api = PlatformApi(f"http://127.0.0.1:{platform.port}", Identity(platform.node_id, "n", key))
        self.executed: list[str] = []
        self.connected = 0
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        outbox = Outbox()
        tasks = TaskRunner(self.execute, outbox.put, KeyedLocks())
        self.rotations = 0
        self.heard: list[int | str] = []
        """The leases that it was told of, and the link that they hang on."""
        self.link = Link(
            api,
            outbox,
            tasks,
            self,
            self,
            read_inventory=self.read_inventory,
            read_slices=self.read_slices,
            read_volumes=self.read_volumes,
            on_connected=self.on_connected,
            on_rotate=self.on_rotate,
        )

    async def read_volumes(self) -> list[str]:
        return []

    async def read_slices(self) -> list[SliceReport]:
        return []

    def on_rotate(self) -> None:
        self.rotations += 1

    async def execute(self, message: TaskMessage, progress: Progress) -> str | None:
        self.executed.append(message.task_id)
        self.began.set()
        await self.go.wait()
        progress("done", "it is done")
        return None

    async def read_inventory(self) -> Inventory:
        return INVENTORY

    def on_connected(self) -> None:
        self.connected += 1

    def set(self, message: SetLeases) -> None:
        self.heard.append(message.sequence)

    def linked(self) -> None:
        self.heard.append("linked")

    def unlinked(self) -> None:
        self.heard.append("unlinked")

    def open(self, message: OpenStream) -> None:
        raise AssertionError("no stream was asked for")


@pytest.fixture
async def linked(platform: Platform, tmp_path: Path) -> AsyncIterator[Linked]:
    agent = Linked(platform, tmp_path)
    running = asyncio.create_task(agent.link.run())
    await platform.until(lambda: platform.hellos, "hello")
    yield agent
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def spec() -> dict[str, str]:
    return {"kind": "delete_slice", "allocation_id": new_id(ALLOCATION)}


async def test_a_task_goes_and_its_result_comes(platform: Platform, linked: Linked) -> None:
    assert platform.hellos[0].inventory == INVENTORY
    assert (await platform.run_task(spec())).ok
    assert [progress.step for progress in platform.progress] == ["done"]


async def test_a_lost_link_loses_nothing(platform: Platform, linked: Linked) -> None:
    linked.go.clear()
    task_id = await platform.send_task(spec())
    await asyncio.wait_for(linked.began.wait(), 60)
    await platform.drop_links()
    linked.go.set()
    assert (await platform.result_of(task_id)).ok
    await platform.until(lambda: len(platform.hellos) == 2, "the second hello")
    assert linked.executed == [task_id], "delivered again, run once"
    assert linked.connected == 2


async def test_whoever_keeps_the_leases_hears_of_them_and_of_the_link(platform: Platform, linked: Linked) -> None:
    linked.link.receive(SetLeases(sequence=7, machines={}).model_dump_json())
    await platform.drop_links()
    both = ["unlinked", "linked"]
    await platform.until(lambda: [one for one in linked.heard if one != 7] == both * 2, "it was linked again")
    assert 7 in linked.heard


async def test_a_result_that_was_not_acknowledged_comes_again(platform: Platform, linked: Linked) -> None:
    platform.acknowledge = False
    task_id = await platform.send_task(spec())
    await platform.result_of(task_id)
    platform.acknowledge = True
    await platform.drop_links()
    await platform.until(lambda: len(platform.results[task_id]) > 1, "the same result again")
    assert linked.executed == [task_id]


async def test_what_it_does_not_understand_is_answered(platform: Platform, linked: Linked) -> None:
    for text in ("no json", '{"type": "news"}', '{"type": "task", "task_id": "tsk_new", "spec": {"kind": "x"}}'):
        linked.link.receive(text)
    result = await platform.result_of("tsk_new")
    assert not result.ok
    assert "does not know this kind of task" in result.message
