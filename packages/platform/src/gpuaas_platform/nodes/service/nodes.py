"""Enrolment of nodes, and what their agents report."""

import hashlib
import secrets
from collections.abc import Sequence

from gpuaas_contract import ids
from gpuaas_contract.events import AllocationEvent, JoinTokenEvent, NodeEvent, VolumeEvent
from gpuaas_contract.nodes import (
    AgentKey,
    Enrolment,
    EnrolRequest,
    Inventory,
    JoinToken,
    JoinTokenCreate,
    Node,
    NodeCondition,
    NodePage,
    NodeStatus,
)
from gpuaas_contract.problems import Code
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.core.wakeups import NODE_TASKS
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.assertions import check_public_key
from gpuaas_platform.nodes import storage as store
from gpuaas_platform.nodes.records import NodeRecord, NodeView
from gpuaas_platform.volumes import storage as volume_store

JOIN_TOKEN_MINUTES = 60


def _to_model(row: NodeView) -> Node:
    return to_wire(Node, row, status=row.shown_status, identity_revoked_at=row.revoked_at, allocated=row.allocated)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def create_join_token(tx: Transaction, caller: Caller, body: JoinTokenCreate) -> JoinToken:
    caller.require(Permission.NODE_MANAGE, Scope(), "node", body.node_name)
    token = f"gpuaas-join-{secrets.token_urlsafe(32)}"
    row = await store.insert_join_token(
        tx, ids.new_id(ids.JOIN_TOKEN), body.node_name, _hash(token), JOIN_TOKEN_MINUTES
    )
    await tx.changed(JoinTokenEvent.CREATED, row)
    await tx.audit("join_token.create", row.id)
    return JoinToken(id=row.id, node_name=body.node_name, token=token, expires_at=row.expires_at)


async def enrol(tx: Transaction, body: EnrolRequest) -> Enrolment:
    """A token enrols one node. The same agent may ask again after a lost answer: its key tells."""
    check_public_key(body.public_key_pem)
    token = await store.lock_join_token(tx, _hash(body.join_token))
    if token is None:
        raise Refusal(Code.JOIN_TOKEN_INVALID, "this join token does not exist; ask an operator for a new one")
    if token.used_by_node_id is not None:
        node = await store.get(tx, token.used_by_node_id)
        if node is not None and node.public_key_pem == body.public_key_pem:
            return Enrolment(node_id=node.id, name=node.name)
        raise Refusal(Code.JOIN_TOKEN_INVALID, "this join token was used before; ask an operator for a new one")
    if not token.valid:
        raise Refusal(Code.JOIN_TOKEN_INVALID, "this join token has expired; ask an operator for a new one")
    row = await store.insert(tx, ids.new_id(ids.NODE), token.node_name, body.public_key_pem)
    if row is None:
        row = await store.enrol_again(tx, token.node_name, body.public_key_pem)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"a node named {token.node_name!r} is enrolled already")
    await store.mark_join_token_used(tx, token.id, row.id)
    await tx.changed(NodeEvent.ENROLLED, row)
    await tx.audit("node.enrol", row.id)
    return Enrolment(node_id=row.id, name=row.name)


async def get_node(tx: Transaction, caller: Caller, node_id: str) -> Node:
    caller.require(Permission.NODE_READ, Scope(), "node", node_id)
    row = await store.get(tx, node_id)
    if row is None:
        raise not_found("node", node_id)
    return _to_model(row)


async def list_nodes(tx: Transaction, caller: Caller, cursor: str | None, limit: int) -> NodePage:
    caller.require(Permission.NODE_READ, Scope(), "node", "")
    rows, after = cut_page(await store.list_all(tx, decode_cursor(cursor), limit + 1), limit)
    return NodePage(items=[_to_model(row) for row in rows], next_cursor=after)


async def _lock_node(tx: Transaction, caller: Caller, node_id: str) -> NodeView:
    caller.require(Permission.NODE_MANAGE, Scope(), "node", node_id)
    row = await store.lock(tx, node_id)
    if row is None:
        raise not_found("node", node_id)
    tx.match(row)
    if row.intent == NodeStatus.RETIRED:
        raise Refusal(Code.INVALID_STATE, f"node {row.name} is retired")
    return row


async def _shown(tx: Transaction, node_id: str) -> Node:
    row = await store.get(tx, node_id)
    assert row is not None
    return _to_model(row)


async def set_node_intent(tx: Transaction, caller: Caller, node_id: str, intent: NodeStatus) -> Node:
    """Cordon, uncordon. What waits for a node is placed by the sweeper, which locks nodes in their order."""
    row = await _lock_node(tx, caller, node_id)
    if row.intent != intent:
        changed = await store.set_intent(tx, node_id, intent)
        await tx.changed(NodeEvent.UNCORDONED if intent == NodeStatus.READY else NodeEvent(intent), changed)
        await tx.audit(f"node.{intent.value}", node_id)
    return await _shown(tx, node_id)


async def drain_node(tx: Transaction, caller: Caller, node_id: str) -> Node:
    """Takes nothing new; whoever has a machine there is told to move. It is empty when its list is."""
    caller.require(Permission.NODE_MANAGE, Scope(), "node", node_id)
    # Before the node: whoever resizes a machine holds the machine first, then the node.
    carried = await allocation_store.list_of_node(tx, node_id, [])
    row = await _lock_node(tx, caller, node_id)
    if row.intent != NodeStatus.DRAINING:
        changed = await store.set_intent(tx, node_id, NodeStatus.DRAINING)
        await tx.changed(NodeEvent.DRAINING, changed, message=f"{len(carried)} allocations are on it")
        await tx.audit("node.drain", node_id)
        for allocation in carried:
            await record(
                tx,
                allocation,
                AllocationEvent.NODE_DRAINING,
                "its node is to be emptied: move what is on it, release it",
            )
        for volume in await volume_store.lock_of_node(tx, node_id, []):
            message = "its node is to be emptied: copy what is on it, delete it"
            await tx.changed(VolumeEvent.NODE_DRAINING, volume, message=message, project_id=volume.project_id)
    return await _shown(tx, node_id)


async def retire_node(tx: Transaction, caller: Caller, node_id: str) -> Node:
    """Only an empty one. Its name is free again, its identity worthless."""
    row = await _lock_node(tx, caller, node_id)
    if row.allocation_ids:
        raise Refusal(
            Code.NOT_EMPTY,
            f"node {row.name} still carries {len(row.allocation_ids)} allocations; drain it first",
            context={"allocation_ids": list(row.allocation_ids)},
        )
    if row.volume_ids:
        raise Refusal(
            Code.NOT_EMPTY,
            f"node {row.name} still has the volumes {', '.join(row.volume_names)}; they must be deleted first",
            context={"volume_ids": list(row.volume_ids)},
        )
    await store.revoke_identity(tx, node_id)
    retired = await store.set_intent(tx, node_id, NodeStatus.RETIRED)
    await tx.changed(NodeEvent.RETIRED, retired)
    await tx.audit("node.retire", node_id, detail={"name": row.name})
    await tx.notify(NODE_TASKS, node_id)
    return await _shown(tx, node_id)


async def revoke_identity(tx: Transaction, caller: Caller, node_id: str) -> Node:
    """Its agent is cut off at once. With a new join token under the same name the host is the same node again."""
    row = await _lock_node(tx, caller, node_id)
    if row.revoked_at is None:
        revoked = await store.revoke_identity(tx, node_id)
        await tx.changed(NodeEvent.IDENTITY_REVOKED, revoked)
        await tx.audit("node.revoke_identity", node_id)
        await tx.notify(NODE_TASKS, node_id)
    return await _shown(tx, node_id)


async def rotate_identity(tx: Transaction, caller: Caller, node_id: str) -> Node:
    """Its agent makes a new key as soon as it hears of it; the old one is worthless once the new one was used."""
    row = await _lock_node(tx, caller, node_id)
    if row.revoked_at is not None:
        raise Refusal(Code.INVALID_STATE, f"the identity of node {row.name} is revoked; enrol it again")
    changed = await store.request_rotation(tx, node_id)
    await tx.changed(NodeEvent.ROTATION_REQUESTED, changed)
    await tx.audit("node.rotate_identity", node_id)
    await tx.notify(NODE_TASKS, node_id)
    return await _shown(tx, node_id)


async def offer_key(tx: Transaction, agent: Caller, body: AgentKey) -> Enrolment:
    """The agent's next key. Both work until the new one is used for the first time."""
    check_public_key(body.public_key_pem)
    row = await store.offer_key(tx, agent.id, body.public_key_pem)
    if row is not None:
        await tx.changed(NodeEvent.KEY_OFFERED, row)
        await tx.audit("node.offer_key", agent.id)
    return Enrolment(node_id=agent.id, name=agent.name)


async def node_said_hello(
    tx: Transaction,
    node_id: str,
    link_id: str,
    address: str,
    inventory: Inventory,
    conditions: Sequence[NodeCondition] = (),
) -> None:
    row = await store.connected(tx, node_id, inventory, conditions)
    await store.set_link(tx, node_id, link_id, address)
    # An older link of the same identity hears of it, wherever it ends.
    await tx.notify(NODE_TASKS, node_id)
    if row is not None:
        await _tell_status(tx, row)


class LinkReplacedError(Exception):
    """A message came by a link that a newer one has replaced, or whose identity was revoked: it counts for nothing."""


async def require_newest_link(tx: Transaction, node_id: str, link_id: str) -> None:
    """Ask this in the transaction in which a message takes effect, after its locks: nothing of a replaced link does."""
    if not await store.is_believed(tx, node_id, link_id):
        raise LinkReplacedError


async def node_has_conditions(tx: Transaction, node_id: str, link_id: str, conditions: Sequence[NodeCondition]) -> None:
    """Note what its agent finds wrong with the host now: the node gets no new machines until that is nothing."""
    await require_newest_link(tx, node_id, link_id)
    row = await store.set_conditions(tx, node_id, link_id, conditions)
    if row is not None:
        await _tell_status(tx, row)


async def _tell_status(tx: Transaction, row: NodeRecord) -> None:
    if row.conditions:
        message = "; ".join(condition.message for condition in row.conditions)
        await tx.changed(NodeEvent.IMPAIRED, row, message=message[:1_000])
    else:
        await tx.changed(NodeEvent(row.status), row)


async def is_newest_link(tx: Transaction, node_id: str, link_id: str) -> bool:
    return await store.has_link(tx, node_id, link_id)


async def link_replaced(tx: Transaction, node_id: str, older: str, newer: str) -> None:
    """Tell operators that two links had one identity: a connection that died unnoticed, or a key that was stolen."""
    row = await store.note_replaced_link(tx, node_id)
    message = (
        f"a link from {newer} took over from one from {older} that was still open, which was cut; if its agent was "
        "neither restarted nor cut off, somebody else has its key: revoke the node's identity"
    )
    await tx.changed(NodeEvent.LINK_REPLACED, row, message=message)
    await tx.audit("node.replace_link", node_id, detail={"older_address": older, "newer_address": newer})


async def inventory_refused(tx: Transaction, node_id: str, sentence: str) -> None:
    """Nothing of it is stored but why: the agent asks again and again, and it is said once."""
    row = await store.note_refused_inventory(tx, node_id, sentence)
    if row is not None:
        await tx.changed(NodeEvent.INVENTORY_REFUSED, row, message=sentence)
        await tx.audit("node.report_inventory", node_id, outcome="denied", detail={"reason": sentence})


async def node_is_alive(tx: Transaction, node_id: str, link_id: str) -> None:
    """Note a heart-beat of its agent."""
    await require_newest_link(tx, node_id, link_id)
    await store.touch(tx, node_id)


async def node_hung_up(tx: Transaction, node_id: str, link_id: str) -> None:
    """Offline at once, unless the agent has a newer connection, to this or to another process."""
    if await store.has_link(tx, node_id, link_id):
        await _mark_offline(tx, node_id, "its agent hung up")


async def mark_silent_nodes(tx: Transaction, seconds: int) -> None:
    for node_id in await store.list_silent(tx, seconds):
        await _mark_offline(tx, node_id, f"no heart-beat for {seconds} seconds")


async def _mark_offline(tx: Transaction, node_id: str, message: str) -> None:
    row = await store.disconnected(tx, node_id)
    if row is not None:
        await tx.changed(NodeEvent.OFFLINE, row, message=message)
