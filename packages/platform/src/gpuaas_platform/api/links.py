"""The WebSocket links of the node agents that are connected to this process."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from gpuaas_contract import ids
from gpuaas_contract.agent_link import (
    AnyFromAgent,
    Heartbeat,
    Hello,
    LeasesSet,
    NodeConditions,
    RotateIdentity,
    StreamRefused,
    TaskAcknowledged,
    TaskProgress,
    TaskResult,
    from_agent_adapter,
)
from gpuaas_contract.base import Resource
from gpuaas_platform.access.service.leases import LeaseTeller
from gpuaas_platform.allocations.service.placement import place_waiting
from gpuaas_platform.core.origins import current_origin
from gpuaas_platform.core.wakeups import NODE_TASKS
from gpuaas_platform.nodes.rules import refuse_hello, refuse_text
from gpuaas_platform.nodes.service import nodes
from gpuaas_platform.nodes.service import truth as node_truth
from gpuaas_platform.platform import Platform

log = structlog.get_logger()
RECHECK_SECONDS = 30
"""A notification that was lost is made up for after this time at the latest."""
POLICY_CLOSE = 1008
MOST_REASON_BYTES = 120
"""WebSocket allows no more for the reason of a close."""


@dataclass(eq=False, slots=True)
class _Link:
    """One connection of an agent."""

    id: str
    node_id: str
    websocket: WebSocket
    address: str
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be something to tell the node."""
    leases: LeaseTeller = field(default_factory=LeaseTeller)
    greeted: bool = False
    """Its hello is stored: from then on it is the node's link, until a newer one says hello."""

    async def send(self, message: Resource) -> None:
        await self.websocket.send_text(message.model_dump_json())

    async def close(self, reason: str) -> None:
        with suppress(RuntimeError, WebSocketDisconnect):
            short = reason.encode()[:MOST_REASON_BYTES].decode(errors="ignore")
            await self.websocket.close(code=POLICY_CLOSE, reason=short)


class AgentLinks:
    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._newest: dict[str, _Link] = {}
        self._links: set[_Link] = set()
        platform.wakeups.on(NODE_TASKS, self._heard)
        self.refused_streams: dict[str, asyncio.Future[WebSocket]] = {}
        """Filled by the stream broker: who waits for the agent to open which stream."""

    @property
    def count(self) -> int:
        return len(self._newest)

    def is_connected(self, node_id: str) -> bool:
        return node_id in self._newest

    def _heard(self, node_id: str) -> None:
        """Of news for one node; for all of them after a lost connection."""
        for link in self._links:
            if node_id in (link.node_id, ""):
                link.news.set()

    async def send(self, node_id: str, message: Resource) -> None:
        await self._newest[node_id].send(message)

    async def serve(self, node_id: str, websocket: WebSocket) -> None:
        """Stay with the agent until it goes, or until a newer link of the same node has said hello."""
        await websocket.accept()
        address = current_origin.get().address or "an unknown address"
        link = _Link(ids.new_id(ids.STREAM), node_id, websocket, address)
        self._links.add(link)
        log.info("agent_connected", node_id=node_id, address=address)
        sender = asyncio.create_task(self._send_orders(link))
        try:
            while True:
                await self._receive(link, await websocket.receive_text())
        except (WebSocketDisconnect, RuntimeError):
            log.info("agent_disconnected", node_id=node_id)
        finally:
            sender.cancel()
            self._links.discard(link)
            if self._newest.get(node_id) is link:
                del self._newest[node_id]
            await self._hung_up(link)

    async def _hung_up(self, link: _Link) -> None:
        try:
            async with self._platform.database.system_transaction() as tx:
                await nodes.node_hung_up(tx, link.node_id, link.id)
        except Exception:
            log.exception("cannot_mark_offline", node_id=link.node_id)

    async def _send_orders(self, link: _Link) -> None:
        """Send each open task once per link that said hello: after a reconnect the agent hears of all of them again."""
        node_id = link.node_id
        sent: set[str] = set()
        asked_to_rotate = began = False
        while True:
            link.news.clear()
            # Before the look at the database: a hello that is stored meanwhile is not seen there yet.
            greeted = link.greeted
            try:
                if greeted and not began:
                    await self._platform.doors.link_began(node_id)
                    began = True
                orders = await self._platform.tasks.orders(node_id, sent)
                doors = await self._platform.doors.list_of_node(node_id) if greeted else []
            except Exception:
                log.exception("cannot_read_tasks", node_id=node_id)
                await asyncio.sleep(1)
                continue
            if not orders.welcome:
                log.info("agent_cut_off", node_id=node_id)
                await link.close("the identity of this node was revoked")
                return
            if not greeted:
                # Whoever has not said hello replaces nobody, and nobody is told of it: it hears nothing either.
                await self._platform.wakeups.wait(link.news, RECHECK_SECONDS)
                continue
            if orders.link_id != link.id:
                await self._cut_older(link, orders.link_address)
                return
            if (leases := link.leases.next_message(doors)) is not None:
                await link.send(leases)
            if orders.rotate and not asked_to_rotate:
                await link.send(RotateIdentity())
            asked_to_rotate = orders.rotate
            for task in orders.tasks:
                sent.add(task.task_id)
                await link.send(task)
            await self._platform.wakeups.wait(link.news, RECHECK_SECONDS)

    async def _cut_older(self, link: _Link, newer_address: str) -> None:
        """Close a link that a newer one of the same identity has replaced. Whoever has the older one says so, since
        only then both were open at once."""
        log.warning("agent_link_replaced", node_id=link.node_id, older=link.address, newer=newer_address)
        try:
            async with self._platform.database.system_transaction() as tx:
                await nodes.link_replaced(tx, link.node_id, link.address, newer_address)
        except Exception:
            log.exception("cannot_note_replaced_link", node_id=link.node_id)
        # Last: with the link, this task ends.
        await link.close("a newer link with this node's identity took over")

    async def _receive(self, link: _Link, text: str) -> None:
        node_id = link.node_id
        try:
            message = from_agent_adapter.validate_json(text)
        except ValidationError as error:
            log.warning("agent_message_refused", node_id=node_id, error=str(error))
            if sentence := refuse_text(text, error):
                await self._refuse(link, sentence)
            return
        if not link.greeted and not isinstance(message, Hello):
            log.warning("agent_without_hello", node_id=node_id, address=link.address, message=message.type)
            await link.close("the first message of an agent is its hello")
            return
        try:
            await self._apply(link, message)
        except nodes.LinkReplacedError:
            # Whoever sends orders on this link hears of the newer one, and cuts this one.
            log.warning("agent_message_too_late", node_id=node_id, address=link.address, message=message.type)
            link.news.set()

    async def _apply(self, link: _Link, message: AnyFromAgent) -> None:
        """Let a message take effect. Each effect asks in its own transaction whether the link is still the newest."""
        node_id = link.node_id
        match message:
            case Hello():
                await self._greet(link, message)
            case Heartbeat():
                async with self._platform.database.system_transaction() as tx:
                    await nodes.node_is_alive(tx, node_id, link.id)
            case NodeConditions():
                async with self._platform.database.system_transaction() as tx:
                    await nodes.node_has_conditions(tx, node_id, link.id, message.conditions)
                if not message.conditions:
                    async with self._platform.database.system_transaction() as tx:
                        await place_waiting(tx, self._platform.plan)
            case TaskProgress():
                await self._platform.tasks.progress(node_id, link.id, message)
            case TaskResult():
                await self._platform.tasks.finish(node_id, link.id, message)
                await link.send(TaskAcknowledged(task_id=message.task_id))
            case LeasesSet():
                async with self._platform.database.system_transaction() as tx:
                    await nodes.require_newest_link(tx, node_id, link.id)
                    await self._platform.doors.heard(tx, link.leases.heard(message.sequence))
                link.news.set()
            case StreamRefused():
                async with self._platform.database.system_transaction() as tx:
                    await nodes.require_newest_link(tx, node_id, link.id)
                waiting = self.refused_streams.get(message.stream_id)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(ConnectionRefusedError(message.message))

    async def _greet(self, link: _Link, hello: Hello) -> None:
        if sentence := refuse_hello(hello):
            await self._refuse(link, sentence)
            return
        async with self._platform.database.system_transaction() as tx:
            # Said again on a link that was replaced meanwhile, it takes nothing back.
            ours = not link.greeted or await nodes.is_newest_link(tx, link.node_id, link.id)
            if ours:
                await nodes.node_said_hello(tx, link.node_id, link.id, link.address, hello.inventory, hello.conditions)
        if not ours:
            return
        link.greeted = True
        link.news.set()
        self._newest[link.node_id] = link
        if hello.slices is not None:
            async with self._platform.database.system_transaction() as tx:
                await nodes.require_newest_link(tx, link.node_id, link.id)
                await node_truth.compare(tx, link.node_id, hello.slices, hello.volume_ids)
        # Not in the same transaction: who places holds no node before.
        async with self._platform.database.system_transaction() as tx:
            await place_waiting(tx, self._platform.plan)

    async def _refuse(self, link: _Link, sentence: str) -> None:
        async with self._platform.database.system_transaction() as tx:
            # A link that was replaced says nothing of the node any more.
            if not link.greeted or await nodes.is_newest_link(tx, link.node_id, link.id):
                await nodes.inventory_refused(tx, link.node_id, sentence)
        await link.close(sentence)
