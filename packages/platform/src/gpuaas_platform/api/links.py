"""The WebSocket links of the node agents that are connected to this process."""

import asyncio

import structlog
from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from gpuaas_contract import ids
from gpuaas_contract.agent_link import (
    Heartbeat,
    Hello,
    RotateIdentity,
    StreamRefused,
    TaskAcknowledged,
    TaskProgress,
    TaskResult,
    from_agent_adapter,
)
from gpuaas_contract.base import Resource
from gpuaas_platform.allocations.service.placement import place_waiting
from gpuaas_platform.core.wakeups import NODE_TASKS
from gpuaas_platform.nodes.service import nodes
from gpuaas_platform.nodes.service import truth as node_truth
from gpuaas_platform.platform import Platform

log = structlog.get_logger()
RECHECK_SECONDS = 30
"""A notification that was lost is made up for after this time at the latest."""


class AgentLinks:
    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._sockets: dict[str, WebSocket] = {}
        self._news: dict[asyncio.Event, str] = {}
        """Set when there may be something to tell the node. One for each link: a task wakes its own node only."""
        platform.wakeups.on(NODE_TASKS, self._heard)
        self.refused_streams: dict[str, asyncio.Future[WebSocket]] = {}
        """Filled by the stream broker: who waits for the agent to open which stream."""

    @property
    def count(self) -> int:
        return len(self._sockets)

    def is_connected(self, node_id: str) -> bool:
        return node_id in self._sockets

    def _heard(self, node_id: str) -> None:
        """Of news for one node; for all of them after a lost connection."""
        for news, id in self._news.items():
            if node_id in (id, ""):
                news.set()

    async def send(self, node_id: str, message: Resource) -> None:
        await self._sockets[node_id].send_text(message.model_dump_json())

    async def serve(self, node_id: str, websocket: WebSocket) -> None:
        """Stay with the agent until it goes. A newer connection of the same node replaces the older one."""
        await websocket.accept()
        link_id = ids.new_id(ids.STREAM)
        self._sockets[node_id] = websocket
        log.info("agent_connected", node_id=node_id)
        news = asyncio.Event()
        self._news[news] = node_id
        sender = asyncio.create_task(self._send_tasks(node_id, websocket, news))
        try:
            while True:
                await self._receive(node_id, link_id, await websocket.receive_text())
        except (WebSocketDisconnect, RuntimeError):
            log.info("agent_disconnected", node_id=node_id)
        finally:
            sender.cancel()
            del self._news[news]
            if self._sockets.get(node_id) is websocket:
                del self._sockets[node_id]
            await self._hung_up(node_id, link_id)

    async def _hung_up(self, node_id: str, link_id: str) -> None:
        try:
            async with self._platform.database.system_transaction() as tx:
                await nodes.node_hung_up(tx, node_id, link_id)
        except Exception:
            log.exception("cannot_mark_offline", node_id=node_id)

    async def _send_tasks(self, node_id: str, websocket: WebSocket, news: asyncio.Event) -> None:
        """Every open task once per connection: after a reconnect the agent hears of all of them again."""
        sent: set[str] = set()
        asked_to_rotate = False
        while True:
            news.clear()
            try:
                orders = await self._platform.tasks.orders(node_id, sent)
            except Exception:
                log.exception("cannot_read_tasks", node_id=node_id)
                await asyncio.sleep(1)
                continue
            if not orders.welcome:
                log.info("agent_cut_off", node_id=node_id)
                await websocket.close(code=1008, reason="the identity of this node was revoked")
                return
            if orders.rotate and not asked_to_rotate:
                await websocket.send_text(RotateIdentity().model_dump_json())
            asked_to_rotate = orders.rotate
            for task in orders.tasks:
                sent.add(task.task_id)
                await websocket.send_text(task.model_dump_json())
            await self._platform.wakeups.wait(news, RECHECK_SECONDS)

    async def _receive(self, node_id: str, link_id: str, text: str) -> None:
        try:
            message = from_agent_adapter.validate_json(text)
        except ValidationError as error:
            log.warning("agent_message_refused", node_id=node_id, error=str(error))
            return
        match message:
            case Hello():
                async with self._platform.database.system_transaction() as tx:
                    await nodes.node_said_hello(tx, node_id, link_id, message.inventory)
                if message.slices is not None:
                    async with self._platform.database.system_transaction() as tx:
                        await node_truth.compare(tx, node_id, message.slices, message.volume_ids)
                # Not in the same transaction: who places holds no node before.
                async with self._platform.database.system_transaction() as tx:
                    await place_waiting(tx, self._platform.plan)
            case Heartbeat():
                async with self._platform.database.system_transaction() as tx:
                    await nodes.node_is_alive(tx, node_id)
            case TaskProgress():
                await self._platform.tasks.progress(node_id, message)
            case TaskResult():
                await self._platform.tasks.finish(node_id, message)
                await self.send(node_id, TaskAcknowledged(task_id=message.task_id))
            case StreamRefused():
                waiting = self.refused_streams.get(message.stream_id)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(ConnectionRefusedError(message.message))
