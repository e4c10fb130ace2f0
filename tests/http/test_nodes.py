"""Nodes: what operators want of them, their identities, and what they find when they come back."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import websockets

from gpuaas_contract import ids
from gpuaas_contract.agent_link import (
    CreateSlice,
    NodeConditions,
    TaskAcknowledged,
    TaskProgress,
    TaskResult,
    to_agent_adapter,
)
from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.changes import Change
from gpuaas_contract.nodes import Capacity, NodeCondition
from gpuaas_contract.usage import UsageKind
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ApiError
from tests.support.world import SimulatedNode, World, make_key


@asynccontextmanager
async def connected(node: SimulatedNode) -> AsyncIterator[asyncio.Task[None]]:
    link = asyncio.create_task(node.run())
    try:
        yield link
    finally:
        link.cancel()
        with suppress(asyncio.CancelledError, websockets.WebSocketException):
            await link


async def enrolled(admin: GpuaasClient, name: str) -> SimulatedNode:
    private, public = make_key()
    join = await admin.join_tokens.create(name)
    return SimulatedNode((await admin.nodes.enrol(join.token, public)).node_id, private, admin.api_url)


async def status_is(admin: GpuaasClient, node: SimulatedNode, status: str) -> None:
    async def is_so() -> bool:
        return (await admin.nodes.get(node.node_id)).status == status

    await World.until(is_so, f"the node is {status}")


async def code_of(call: object) -> str:
    with pytest.raises(ApiError) as error:
        await call  # type: ignore[misc]
    return error.value.problem.code


async def test_cordon_drain_and_retire(world: World) -> None:
    admin, node = world.admin, world.node.node_id
    machine = await world.allocation()
    assert (await admin.nodes.cordon(node)).status == "cordoned"
    waiting = await admin.allocations.create(world.project.id, "two")
    assert (waiting.status, waiting.reason) == ("requested", "waiting for capacity: no node is ready")
    # What is there goes on, and can be worked with.
    await admin.allocations.restart(machine.id)
    assert (await world.at_rest(machine.id)).reason == ""
    assert (await admin.nodes.uncordon(node)).status == "ready"
    assert (await world.at_rest(waiting.id)).status == "active"

    drained = await admin.nodes.drain(node)
    assert drained.status == "draining"
    # Whatever other tests left waiting may have come here too.
    assert {machine.id, waiting.id} <= set(drained.allocation_ids)
    steps = [entry.step for entry in (await admin.allocations.timeline(machine.id)).items]
    assert steps[-1] == "node_draining"
    assert await code_of(admin.nodes.retire(node)) == "not_empty"
    for id in drained.allocation_ids:
        await admin.allocations.release(id)
        assert (await world.at_rest(id)).status == "released"
    retired = await admin.nodes.retire(node)
    assert (retired.status, retired.allocation_ids) == ("retired", [])
    for change in (admin.nodes.cordon, admin.nodes.uncordon, admin.nodes.drain, admin.nodes.rotate_identity):
        assert await code_of(change(node)) == "invalid_state"
    with pytest.raises(websockets.InvalidStatus):
        await world.node.run()
    # Its name is free again.
    assert (await enrolled(admin, retired.name)).node_id != node


async def test_what_operators_want_survives_an_outage(admin: GpuaasClient) -> None:
    node = await enrolled(admin, f"node-{secrets.token_hex(4)}")
    assert (await admin.nodes.get(node.node_id)).status == "enrolling"
    async with connected(node):
        await status_is(admin, node, "ready")
        await admin.nodes.cordon(node.node_id)
    await status_is(admin, node, "offline")
    assert (await admin.nodes.get(node.node_id)).intent == "cordoned"
    async with connected(node):
        await status_is(admin, node, "cordoned")
    await admin.nodes.retire(node.node_id)


async def test_a_node_that_is_not_as_it_should_be_takes_no_new_machines(world: World) -> None:
    admin, node = world.admin, world.node
    machine = await world.allocation()
    assert node.link is not None
    cursor = (await admin.changes().page(wait=0)).next_cursor

    async def says(*messages: str) -> None:
        found = [NodeCondition(kind="firewall", message=message) for message in messages]
        assert node.link is not None
        await node.link.send(NodeConditions(conditions=found).model_dump_json())

    await says("the table is missing")
    await status_is(admin, node, "impaired")
    shown = await admin.nodes.get(node.node_id)
    assert [(found.kind, found.message) for found in shown.conditions] == [("firewall", "the table is missing")]
    assert shown.intent == "ready"
    waiting = await admin.allocations.create(world.project.id, "two")
    assert (waiting.status, waiting.reason) == ("requested", "waiting for capacity: no node is ready")
    # What is there goes on, and operators may still decide about it.
    await admin.allocations.restart(machine.id)
    assert (await world.at_rest(machine.id)).reason == ""
    assert (await admin.nodes.cordon(node.node_id)).status == "cordoned"
    assert (await admin.nodes.uncordon(node.node_id)).status == "impaired"

    # What an agent may not say changes nothing.
    before = (await admin.nodes.get(node.node_id)).revision
    for words in ('{"type": "conditions"}', '{"type": "conditions", "conditions": [{"kind": "A b", "message": "x"}]}'):
        await node.link.send(words)
    too_long = [{"kind": "firewall", "message": "x" * 501}]
    too_many = [{"kind": "firewall", "message": "x"}] * 51
    for conditions in (too_long, too_many):
        await node.link.send(json.dumps({"type": "conditions", "conditions": conditions}))
    # Twice the same is no news.
    await says("the table is missing")
    await says("the table is missing", "a bridge is missing")

    async def both() -> bool:
        return len((await admin.nodes.get(node.node_id)).conditions) == 2

    await world.until(both, "the second condition is shown")
    assert (await admin.nodes.get(node.node_id)).revision == before + 1

    await says()
    await status_is(admin, node, "ready")
    assert (await world.at_rest(waiting.id)).status == "active"
    told = []
    async with asyncio.timeout(60):
        async for change in admin.changes(since=cursor, nouns=["node"]):
            if isinstance(change, Change) and change.resource_id == node.node_id:
                told.append((change.event, change.message))
                if change.event == "ready":
                    break
    assert told == [
        ("impaired", "the table is missing"),
        ("cordoned", ""),
        ("uncordoned", ""),
        ("impaired", "the table is missing; a bridge is missing"),
        ("ready", ""),
    ]


async def test_conditions_are_read_anew_with_each_connection(admin: GpuaasClient) -> None:
    node = await enrolled(admin, f"node-{secrets.token_hex(4)}")
    node.capacity = Capacity(cpus=0, memory_mib=0, disk_gib=0, gpus=0)
    node.conditions = [NodeCondition(kind="network", message="a bridge is missing")]
    async with connected(node):
        await status_is(admin, node, "impaired")
    await status_is(admin, node, "offline")
    node.conditions = []
    async with connected(node):
        await status_is(admin, node, "ready")
    assert (await admin.nodes.get(node.node_id)).conditions == []
    await status_is(admin, node, "offline")
    await admin.nodes.retire(node.node_id)


async def test_a_revoked_identity_is_cut_off_and_can_be_enrolled_again(admin: GpuaasClient) -> None:
    name = f"node-{secrets.token_hex(4)}"
    node = await enrolled(admin, name)
    assert await code_of(enrolled(admin, name)) == "name_taken"
    async with connected(node) as link:
        await status_is(admin, node, "ready")
        revoked = await admin.nodes.revoke_identity(node.node_id)
        assert (revoked.status, revoked.identity_revoked_at is not None) == ("offline", True)
        done, _ = await asyncio.wait([link], timeout=60)
        assert done, "the link was cut"
    with pytest.raises(websockets.InvalidStatus):
        await node.run()
    assert await node.offer_key(make_key()[1]) == 401
    assert await code_of(admin.nodes.rotate_identity(node.node_id)) == "invalid_state"
    again = await enrolled(admin, name)
    assert again.node_id == node.node_id
    async with connected(again):
        await status_is(admin, again, "ready")
    await admin.nodes.retire(node.node_id)


async def test_a_key_is_rotated_and_the_old_one_is_worthless(admin: GpuaasClient) -> None:
    node = await enrolled(admin, f"node-{secrets.token_hex(4)}")
    old = node.private_key_pem
    async with connected(node):
        await status_is(admin, node, "ready")
        await admin.nodes.rotate_identity(node.node_id)

        async def rotated() -> bool:
            return (await admin.nodes.get(node.node_id)).rotation_requested_at is None

        await World.until(rotated, "the node has a new key")
        assert (await admin.nodes.get(node.node_id)).status == "ready"
    assert node.private_key_pem != old
    async with connected(node):
        await status_is(admin, node, "ready")
    stale = SimulatedNode(node.node_id, old, admin.api_url)
    assert await stale.offer_key(make_key()[1]) == 401
    await admin.nodes.retire(node.node_id)


async def test_truth_is_read_again_when_a_node_returns(world: World) -> None:
    admin = world.admin
    kept, lost, gone = [await world.allocation(name) for name in ("kept", "lost", "gone")]
    await admin.allocations.release(gone.id)
    assert (await world.at_rest(gone.id)).status == "released"
    stranger = ids.new_id(ids.ALLOCATION)
    back = SimulatedNode(world.node.node_id, world.node.private_key_pem, admin.api_url)
    back.slices = [kept.id, gone.id, stranger]
    async with connected(back):

        async def compared() -> bool:
            return bool((await admin.nodes.get(back.node_id)).differences)

        await world.until(compared, "the platform has compared")
        node = await admin.nodes.get(back.node_id)
        found = {difference.allocation_id: difference.finding for difference in node.differences}
        assert found == {lost.id: "missing", gone.id: "left_over", stranger: "unknown"}
        assert (await admin.allocations.get(kept.id)).status == "active"
        now = await admin.allocations.get(lost.id)
        assert now.status == AllocationStatus.FAILED
        assert "came back without the machine" in now.reason
        assert now.charged_until is not None
        # Another machine would be another interval: it is released, and asked for anew.
        assert await code_of(admin.allocations.retry(lost.id)) == "invalid_state"
        await admin.allocations.release(lost.id)
        assert (await world.at_rest(lost.id)).status == "released"
        records = await admin.usage.list(project_id=world.project.id, allocation_id=lost.id).all()
        assert {record.kind for record in records} == set(UsageKind)
        assert all(record.ended_at is not None for record in records)


async def test_an_agent_cannot_speak_about_the_machines_of_another_node(world: World) -> None:
    admin = world.admin
    world.node.holds = {"create_slice"}
    asked = await admin.allocations.create(world.project.id, "one")

    async def ordered() -> bool:
        return any(isinstance(task.spec, CreateSlice) for task in world.node.taken)

    await world.until(ordered, "its node was asked to make it")
    (task,) = [task for task in world.node.taken if isinstance(task.spec, CreateSlice)]
    assert isinstance(task.spec, CreateSlice)
    assert task.spec.allocation_id == asked.id
    before = await admin.allocations.timeline(asked.id)
    stranger = await enrolled(admin, f"node-{secrets.token_hex(4)}")
    stranger.capacity, stranger.slices = Capacity(cpus=0, memory_mib=0, disk_gib=0, gpus=0), [asked.id]
    url = admin.api_url.replace("http", "ws", 1) + "/v1/agent/link"
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {stranger.token()}"}) as link:
        await link.send(stranger.hello().model_dump_json())
        await link.send(TaskProgress(task_id=task.task_id, step="stolen").model_dump_json())
        acknowledged = 0
        for ok in (True, False):
            await link.send(TaskResult(task_id=task.task_id, ok=ok, message="stolen").model_dump_json())
        # The stranger may forget the task; whose it is goes on with it.
        while acknowledged < 2:
            message = to_agent_adapter.validate_json(await asyncio.wait_for(link.recv(), 10))
            acknowledged += isinstance(message, TaskAcknowledged)
    (difference,) = (await admin.nodes.get(stranger.node_id)).differences
    assert (difference.allocation_id, difference.finding) == (asked.id, "unknown")
    after = await admin.allocations.get(asked.id)
    assert (after.status, after.node_id, after.revision) == ("provisioning", world.node.node_id, asked.revision)
    assert await admin.allocations.timeline(asked.id) == before
    headers = {"Authorization": f"Bearer {stranger.token()}"}
    async with httpx.AsyncClient(base_url=admin.api_url, headers=headers) as http:
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
        body = {"allocation_id": asked.id, "public_key": key}
        assert (await http.post("/v1/agent/host-certificates", json=body)).status_code == 404
    await admin.nodes.retire(stranger.node_id)
