"""Bounds on a node's agent: one link, an inventory within limits, host certificates for days."""

import asyncio
import json
import secrets
from contextlib import suppress
from typing import Any

import httpx
import pytest
import websockets
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity

from gpuaas_contract.access import HOST_CERTIFICATE_SECONDS
from gpuaas_contract.agent_link import (
    Heartbeat,
    NodeConditions,
    RenewTrust,
    TaskMessage,
    TaskProgress,
    TaskResult,
)
from gpuaas_contract.nodes import NodeCondition
from gpuaas_stack.settings import Settings
from tests.http.test_nodes import connected, enrolled, status_is
from tests.support.database import connect
from tests.support.world import SimulatedNode, World

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def audit_details(settings: Settings, action: str, node_id: str) -> list[dict[str, Any]]:
    with connect(settings) as connection:
        query = "SELECT detail FROM audit_entries WHERE action = %s AND target = %s ORDER BY id"
        return [row[0] for row in connection.execute(query, (action, node_id)).fetchall()]


async def test_the_newer_of_two_links_wins_and_the_older_is_cut(world: World, settings: Settings) -> None:
    node = await enrolled(world.admin, f"node-{secrets.token_hex(4)}")
    twin = SimulatedNode(node.node_id, node.private_key_pem, node.api_url)
    async with connected(node) as older:
        await status_is(world.admin, node, "ready")
        assert (await world.admin.nodes.get(node.node_id)).link_replaced_at is None
        async with connected(twin):
            # Its own server closed it, with a reason.
            with pytest.raises(websockets.ConnectionClosed) as cut:
                await asyncio.wait_for(older, 60)
            assert cut.value.rcvd is not None
            assert "took over" in cut.value.rcvd.reason

            async def is_shown() -> bool:
                return (await world.admin.nodes.get(node.node_id)).link_replaced_at is not None

            await world.until(is_shown, "operators see it")
            assert (await world.admin.nodes.get(node.node_id)).status == "ready", "the newer one goes on"
            (entry,) = audit_details(settings, "node.replace_link", node.node_id)
            assert entry["older_address"] == entry["newer_address"] == "127.0.0.1"
    await status_is(world.admin, node, "offline")
    await world.admin.nodes.retire(node.node_id)


REPLACED = "UPDATE nodes SET link_id = 'str_of_another_process' WHERE id = %s"
REVOKED = "UPDATE nodes SET revoked_at = now() WHERE id = %s"


@pytest.mark.parametrize("ended", [REPLACED, REVOKED], ids=["replaced", "revoked"])
async def test_nothing_that_a_replaced_link_says_counts_before_it_is_cut(
    world: World, settings: Settings, ended: str
) -> None:
    """Between the hello of a newer link, which any process may have heard, and the cut of the older one."""
    world.node.holds = {"create_slice"}
    machine = await world.admin.allocations.create(world.project.id, f"late-{secrets.token_hex(3)}")

    async def asked() -> TaskMessage | None:
        specs = [(one, one.spec) for one in world.node.taken]
        return next((one for one, spec in specs if getattr(spec, "allocation_id", None) == machine.id), None)

    task = await world.until(asked, "the node is asked to make the machine")
    older = world.node.link
    assert older is not None
    with connect(settings) as connection:
        # Exactly what another process writes; nobody is notified, as where the news is late.
        connection.execute(ended, (world.node.node_id,))
        connection.execute("UPDATE nodes SET last_seen_at = NULL WHERE id = %s", (world.node.node_id,))
        connection.commit()
        false = NodeCondition(kind="firewall", message="a thief says so")
        for message in (
            Heartbeat(),
            NodeConditions(conditions=[false]),
            TaskProgress(task_id=task.task_id, step="stolen"),
            TaskResult(task_id=task.task_id, ok=True),
        ):
            with suppress(websockets.ConnectionClosed):
                await older.send(message.model_dump_json())
        # All of it was read once the link is cut, which follows from the first message.
        await asyncio.wait_for(older.wait_closed(), 60)
        query = "SELECT last_seen_at, conditions, (SELECT state FROM node_tasks WHERE id = %s) FROM nodes WHERE id = %s"
        assert connection.execute(query, (task.task_id, world.node.node_id)).fetchone() == (None, [], "queued")
    assert (await world.admin.allocations.get(machine.id)).status == "provisioning"
    timeline = await world.admin.allocations.timeline(machine.id)
    assert "stolen" not in str(timeline)
    with connect(settings) as connection:
        # The newer link of the other process, which there is not, hangs up.
        connection.execute("UPDATE nodes SET status = 'offline' WHERE id = %s", (world.node.node_id,))


async def test_who_does_not_say_hello_hears_nothing_and_reports_nothing(world: World) -> None:
    """A stolen key must not listen unseen beside the node's own link, nor report in its name."""
    node = await enrolled(world.admin, f"node-{secrets.token_hex(4)}")
    # There is something to hear.
    await world.admin.nodes.rotate_identity(node.node_id)
    url = node.api_url.replace("http", "ws", 1) + "/v1/agent/link"
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {node.token()}"}) as link:
        await link.send(Heartbeat().model_dump_json())
        with pytest.raises(websockets.ConnectionClosed) as cut:
            await asyncio.wait_for(link.recv(), 60)
        assert cut.value.rcvd is not None
        assert "hello" in cut.value.rcvd.reason
    assert (await world.admin.nodes.get(node.node_id)).last_seen_at is None
    await world.admin.nodes.retire(node.node_id)


async def test_a_node_that_comes_back_has_no_second_link(world: World) -> None:
    node = await enrolled(world.admin, f"node-{secrets.token_hex(4)}")
    for _ in range(2):
        async with connected(node):
            await status_is(world.admin, node, "ready")
        await status_is(world.admin, node, "offline")
    assert (await world.admin.nodes.get(node.node_id)).link_replaced_at is None
    await world.admin.nodes.retire(node.node_id)


BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"capacity": {"cpus": 10**12, "memory_mib": 1, "disk_gib": 1, "gpus": 0}}, "cpus is not from 0 to 65536"),
    ({"capacity": {"cpus": 1, "memory_mib": -1, "disk_gib": 1, "gpus": 0}}, "memory_mib is not from 0"),
    ({"capacity": {"cpus": "many", "memory_mib": 1, "disk_gib": 1, "gpus": 0}}, "inventory.capacity.cpus"),
    ({"images": ["x"] * 1_001}, "images has 1001 entries, more than 1000"),
    ({"virtualisation": "v" * 300}, "virtualisation has 300 characters"),
    ({"gpu_devices": ["/dev/nvidia0\x1b[2J"]}, "an entry of gpu_devices has characters that cannot be shown"),
]


async def test_an_inventory_beyond_its_bounds_changes_nothing_and_says_why(world: World, settings: Settings) -> None:
    node = await enrolled(world.admin, f"node-{secrets.token_hex(4)}")
    async with connected(node):
        await status_is(world.admin, node, "ready")
    await status_is(world.admin, node, "offline")
    before = await world.admin.nodes.get(node.node_id)
    url = node.api_url.replace("http", "ws", 1) + "/v1/agent/link"
    for change, sentence in BEYOND:
        hello = json.loads(node.hello().model_dump_json())
        hello["inventory"] |= change
        for _ in range(2):
            headers = {"Authorization": f"Bearer {node.token()}"}
            async with websockets.connect(url, additional_headers=headers) as link:
                await link.send(json.dumps(hello))
                await asyncio.wait_for(link.wait_closed(), 60)
                assert (link.close_reason or "").startswith("the agent's inventory is refused")
        seen = await world.admin.nodes.get(node.node_id)
        assert sentence in seen.inventory_refused
        assert (seen.status, seen.inventory) == ("offline", before.inventory)
    told = audit_details(settings, "node.report_inventory", node.node_id)
    assert len(told) == len(BEYOND), "the agent asks again and again; it is told once"
    async with connected(node):
        await status_is(world.admin, node, "ready")
        assert (await world.admin.nodes.get(node.node_id)).inventory_refused == ""
    await status_is(world.admin, node, "offline")
    await world.admin.nodes.retire(node.node_id)


async def certify(world: World, allocation_id: str) -> SSHCertificate:
    headers = {"Authorization": f"Bearer {world.node.token()}"}
    async with httpx.AsyncClient(base_url=world.node.api_url, headers=headers) as http:
        body = {"allocation_id": allocation_id, "public_key": HOST_KEY}
        answer = await http.post("/v1/agent/host-certificates", json=body)
    certificate = load_ssh_public_identity(answer.json()["certificate"].encode())
    assert isinstance(certificate, SSHCertificate)
    return certificate


async def test_host_certificates_are_for_a_week_and_renewed_at_half(world: World, settings: Settings) -> None:
    machine = await world.allocation()
    world.node.holds = {"renew_trust"}
    certificate = await certify(world, machine.id)
    assert 0 <= certificate.valid_before - certificate.valid_after - HOST_CERTIFICATE_SECONDS < 120

    def renewals() -> list[RenewTrust]:
        specs = [task.spec for task in world.node.taken]
        return [spec for spec in specs if isinstance(spec, RenewTrust) and spec.allocation_id == machine.id]

    def due_in(connection: Any) -> float:
        query = """SELECT extract(epoch FROM host_certificate_due_at - now()) FROM allocations WHERE id = %s"""
        return float(connection.execute(query, (machine.id,)).fetchone()[0])

    with connect(settings) as connection:
        assert abs(due_in(connection) - HOST_CERTIFICATE_SECONDS / 2) < 600
        asked = len(renewals())
        # A machine that was off for a month.
        connection.execute(
            """UPDATE allocations SET host_certificate_expires_at = now() - interval '23 days',
                   host_certificate_due_at = now() - interval '27 days' WHERE id = %s""",
            (machine.id,),
        )

    async def is_asked() -> bool:
        return len(renewals()) == asked + 1

    await world.until(is_asked, "the machine is to get another certificate")
    with connect(settings) as connection:
        assert due_in(connection) > 0, "it is not asked again every other second"
    await certify(world, machine.id)
    with connect(settings) as connection:
        assert abs(due_in(connection) - HOST_CERTIFICATE_SECONDS / 2) < 600
