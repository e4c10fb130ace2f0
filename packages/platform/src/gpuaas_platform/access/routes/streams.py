"""Byte streams to machines: a client's WebSocket joined with one that the machine's agent dials."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog
from fastapi import WebSocket, WebSocketDisconnect
from starlette.websockets import WebSocketState

from gpuaas_contract import ids
from gpuaas_contract.agent_link import OpenStream
from gpuaas_contract.problems import Code
from gpuaas_platform.access.records import AccessGrantRecord, TunnelPort
from gpuaas_platform.access.service.streams import list_ended
from gpuaas_platform.allocations.records import AllocationView
from gpuaas_platform.api.links import AgentLinks
from gpuaas_platform.api.problems import problem_of, problem_response
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.wakeups import ACCESS
from gpuaas_platform.observability.metrics import Metrics
from gpuaas_platform.platform import Platform

log = structlog.get_logger()
SSH_PORT = 22
OPEN_SECONDS = 10
RECHECK_SECONDS = 2
DRAIN_SECONDS = 5
POLICY_CLOSE = 1008
CUT = "the right behind this connection has ended"

Receive = Callable[[], Awaitable[bytes]]
"""Raises where the other side has ended."""
Send = Callable[[bytes], Awaitable[None]]


async def refuse(websocket: WebSocket, refusal: Refusal) -> None:
    """Answer the upgrade with a problem where that is still possible, else close with the reason."""
    correlation_id = str(websocket.state.correlation_id)
    if websocket.client_state == WebSocketState.CONNECTING:
        await websocket.send_denial_response(problem_response(refusal, correlation_id))
    elif websocket.client_state == WebSocketState.CONNECTED:
        problem = problem_of(refusal, correlation_id)
        with suppress(RuntimeError):
            await websocket.close(POLICY_CLOSE, f"{problem.code.value}: {problem.detail}"[:120])


@dataclass(slots=True)
class _Waiting:
    node_id: str
    agent: asyncio.Future[WebSocket]
    over: asyncio.Event


@dataclass(slots=True)
class Joined:
    """A stream to a machine, for as long as the right behind it lasts."""

    agent: WebSocket
    access_id: str
    principal_id: str
    cut: asyncio.Event
    """Set where the right has ended."""
    tunnel: TunnelPort | None = None
    """The port that it leads to; None for sshd."""
    to_machine: int = 0
    from_machine: int = 0
    """Bytes."""


class StreamBroker:
    def __init__(self, platform: Platform, links: AgentLinks, metrics: Metrics) -> None:
        self._platform = platform
        self._links = links
        self._metrics = metrics
        self._waiting: dict[str, _Waiting] = {}
        self._open: dict[str, Joined] = {}

    @property
    def count(self) -> int:
        return len(self._open)

    async def serve_client(
        self,
        websocket: WebSocket,
        access: AccessGrantRecord,
        machine: AllocationView,
        correlation_id: str,
        tunnel: TunnelPort | None = None,
    ) -> None:
        try:
            async with self.join(access, machine, correlation_id, tunnel) as joined:
                try:
                    await websocket.accept()
                except OSError:
                    # The client went away while its stream was being opened.
                    return
                await carry(joined, websocket.receive_bytes, websocket.send_bytes)
                if joined.cut.is_set():
                    await _close(websocket, POLICY_CLOSE, CUT)
        finally:
            await _close(websocket)

    @asynccontextmanager
    async def join(
        self,
        access: AccessGrantRecord,
        machine: AllocationView,
        correlation_id: str,
        tunnel: TunnelPort | None = None,
    ) -> AsyncIterator[Joined]:
        """A stream through the machine's agent: counted, cut when the right ends, its end written down."""
        node_id, principal_id = machine.node_id, access.principal_id
        assert node_id is not None, "a machine with an agent is on a node"
        self._require_room(principal_id)
        self.require_link(machine)
        stream_id = ids.new_id(ids.STREAM)
        waiting = _Waiting(node_id, asyncio.get_running_loop().create_future(), asyncio.Event())
        self._waiting[stream_id] = waiting
        self._links.refused_streams[stream_id] = waiting.agent
        started = time.monotonic()
        joined = None
        try:
            agent = await self._ask_agent(node_id, stream_id, machine, correlation_id, waiting, tunnel)
            joined = self._open[stream_id] = Joined(agent, access.id, principal_id, asyncio.Event(), tunnel)
            self._metrics.streams_opened.inc()
            yield joined
        finally:
            self._open.pop(stream_id, None)
            self._waiting.pop(stream_id, None)
            self._links.refused_streams.pop(stream_id, None)
            waiting.over.set()
            if joined is not None:
                await self._note_end(joined, machine, correlation_id, time.monotonic() - started)

    def require_link(self, machine: AllocationView) -> None:
        if machine.node_id is None or not self._links.is_connected(machine.node_id):
            detail = f"the node of machine {machine.name} is offline: its agent is not connected"
            raise Refusal(Code.NODE_OFFLINE, detail, retry_after=5)

    def _require_room(self, principal_id: str) -> None:
        most = self._platform.stream_limits.streams_per_principal
        if sum(joined.principal_id == principal_id for joined in self._open.values()) >= most:
            detail = f"nobody has more than {most} streams open at a time; close some first"
            raise Refusal(Code.RATE_LIMITED, detail, retry_after=5)

    async def _note_end(self, joined: Joined, machine: AllocationView, correlation_id: str, seconds: float) -> None:
        was_cut = joined.cut.is_set()
        self._metrics.stream_ended(was_cut, joined.to_machine, joined.from_machine, seconds)
        detail = {
            "grant": joined.access_id,
            "seconds": round(seconds, 1),
            "bytes_to_machine": joined.to_machine,
            "bytes_from_machine": joined.from_machine,
            "cut": was_cut,
        }
        action = "access.close_stream"
        if (tunnel := joined.tunnel) is not None:
            action, detail = "tunnel.close", {**detail, "member": tunnel.member_id, "port": tunnel.name}
        try:
            async with self._platform.database.transaction(joined.principal_id, correlation_id) as tx:
                await tx.audit_owned(action, machine, detail)
        except Exception:
            log.exception("cannot_note_end_of_stream", **detail)

    async def _ask_agent(
        self,
        node_id: str,
        stream_id: str,
        machine: AllocationView,
        correlation_id: str,
        waiting: _Waiting,
        tunnel: TunnelPort | None,
    ) -> WebSocket:
        message = OpenStream(
            stream_id=stream_id,
            allocation_id=machine.id,
            address=machine.address,
            port=SSH_PORT if tunnel is None else tunnel.number,
            half_close=tunnel is not None,
            correlation_id=correlation_id,
        )
        try:
            await self._links.send(node_id, message)
            return await asyncio.wait_for(waiting.agent, OPEN_SECONDS)
        except (TimeoutError, OSError, KeyError, RuntimeError, WebSocketDisconnect) as error:
            what = "the machine" if tunnel is None else f"port {tunnel.name} ({tunnel.number}) of {machine.name}"
            detail = f"{what} cannot be reached through its node: {str(error) or 'no answer'}"
            raise Refusal(Code.UNAVAILABLE, detail, retry_after=2) from error

    async def serve_agent(self, node_id: str, stream_id: str, websocket: WebSocket) -> None:
        waiting = self._waiting.get(stream_id)
        if waiting is None or waiting.node_id != node_id or waiting.agent.done():
            raise not_found("stream", stream_id)
        await websocket.accept()
        waiting.agent.set_result(websocket)
        await waiting.over.wait()
        await _close(websocket)

    async def cut_ended(self) -> None:
        """For ever: cut the streams whose right has ended."""
        while True:
            woken = self._platform.wakeups.event(ACCESS)
            grants = {joined.access_id for joined in self._open.values()}
            if grants:
                try:
                    async with self._platform.database.system_transaction() as tx:
                        ended = await list_ended(tx, sorted(grants))
                except Exception:
                    log.exception("cannot_check_grants")
                    ended = set()
                for joined in list(self._open.values()):
                    if joined.access_id in ended:
                        joined.cut.set()
            await self._platform.wakeups.wait(woken, RECHECK_SECONDS)


async def carry(joined: Joined, receive: Receive, send: Send) -> None:
    """Copy both ways until one side ends the stream, or its right ends."""

    def sent(count: int) -> None:
        joined.to_machine += count

    def received(count: int) -> None:
        joined.from_machine += count

    upward = asyncio.create_task(_copy(receive, joined.agent.send_bytes, sent))
    downward = asyncio.create_task(_copy(joined.agent.receive_bytes, send, received))
    end = asyncio.create_task(joined.cut.wait())
    tasks = {upward, downward, end}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if upward.done() and upward.result() and not end.done():
            # The machine hung up first: what it said before that is still on its way to the client.
            await asyncio.wait({downward, end}, timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(receive: Receive, send: Send, count: Callable[[int], None]) -> bool:
    """Whether it was the receiving side of this direction that ended it."""
    while True:
        try:
            content = await receive()
        except (WebSocketDisconnect, RuntimeError, OSError, EOFError):
            return False
        try:
            await send(content)
        except (WebSocketDisconnect, RuntimeError, OSError):
            return True
        count(len(content))


async def _close(websocket: WebSocket, code: int = 1000, reason: str = "") -> None:
    if websocket.application_state == WebSocketState.CONNECTED:
        with suppress(RuntimeError, WebSocketDisconnect):
            await websocket.close(code, reason)
