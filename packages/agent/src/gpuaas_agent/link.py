"""The agent's connection to the platform: dialled out, kept alive, dialled again."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from pydantic import BaseModel, ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from gpuaas_agent import __version__
from gpuaas_agent.api import PlatformApi
from gpuaas_agent.errors import AgentError, reason_of
from gpuaas_contract.agent_link import (
    HEARTBEAT_SECONDS,
    OFFLINE_AFTER_SECONDS,
    Heartbeat,
    Hello,
    OpenStream,
    RotateIdentity,
    SetLeases,
    SliceReport,
    TaskAcknowledged,
    TaskMessage,
    TaskResult,
    to_agent_adapter,
)
from gpuaas_contract.backoff import Backoff
from gpuaas_contract.base import Resource
from gpuaas_contract.nodes import Inventory, NodeCondition

log = logging.getLogger(__name__)

LINK_PATH = "/v1/agent/link"
MESSAGE_LIMIT = 4 * 1024 * 1024
RESEND_SECONDS = 15


class _UnknownTask(Resource):
    type: Literal["task"]
    task_id: str


class Tasks(Protocol):
    def accept(self, message: TaskMessage) -> None: ...
    def acknowledge(self, task_id: str) -> None: ...
    def report_again(self, *, older_than: float = 0.0) -> None: ...


class Streams(Protocol):
    def open(self, message: OpenStream) -> None: ...


class Leases(Protocol):
    def set(self, message: SetLeases) -> None: ...
    def linked(self) -> None: ...
    def unlinked(self) -> None: ...


class Outbox:
    """Messages on their way to the platform, kept while the link is down.

    Bounded: the oldest progress falls out. Results are sent again by whoever owns them.
    """

    def __init__(self, limit: int = 2_000) -> None:
        self._messages: deque[str] = deque(maxlen=limit)
        self._filled = asyncio.Event()

    def put(self, message: BaseModel) -> None:
        self._messages.append(message.model_dump_json())
        self._filled.set()

    async def get(self) -> str:
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        return self._messages.popleft()

    def put_back(self, text: str) -> None:
        """Queue a message again, in its old place, that may not have arrived."""
        if len(self._messages) < (self._messages.maxlen or 0):
            self._messages.appendleft(text)


class Link:
    def __init__(
        self,
        api: PlatformApi,
        outbox: Outbox,
        tasks: Tasks,
        streams: Streams,
        leases: Leases,
        *,
        read_inventory: Callable[[], Awaitable[Inventory]],
        read_slices: Callable[[], Awaitable[list[SliceReport]]],
        read_volumes: Callable[[], Awaitable[list[str]]],
        read_conditions: Callable[[], list[NodeCondition]] = list,
        on_connected: Callable[[], None],
        on_rotate: Callable[[], None],
    ) -> None:
        self._api = api
        self._outbox = outbox
        self._tasks = tasks
        self._streams = streams
        self._leases = leases
        self._read_inventory = read_inventory
        self._read_slices = read_slices
        self._read_volumes = read_volumes
        self._read_conditions = read_conditions
        self._on_connected = on_connected
        self._on_rotate = on_rotate

    async def run(self) -> None:
        # The longest pause stays well below the time after which the platform calls the node offline.
        backoff = Backoff(first_delay=0.2, longest_delay=5)
        pauses = backoff.delays()
        while True:
            started = time.monotonic()
            self._leases.unlinked()
            try:
                await self._session()
            except InvalidStatus as error:
                log.error(
                    "the platform refuses this node: HTTP %d; if it was set up anew or has retired the node,"
                    " remove node.json from the agent's state directory and start with a new join token",
                    error.response.status_code,
                )
            except (AgentError, WebSocketException, OSError, TimeoutError) as error:
                log.warning("no link to the platform: %s", reason_of(error))
            if time.monotonic() - started > OFFLINE_AFTER_SECONDS:
                pauses = backoff.delays()
            await asyncio.sleep(next(pauses))

    async def _session(self) -> None:
        inventory = await self._read_inventory()
        # What exists is read after all that was said before and before anything is said on this connection.
        slices, volumes = await self._read_slices(), await self._read_volumes()
        async with connect(
            self._api.websocket_url(LINK_PATH),
            additional_headers=self._api.headers(),
            max_size=MESSAGE_LIMIT,
            ping_interval=HEARTBEAT_SECONDS,
            ping_timeout=OFFLINE_AFTER_SECONDS,
            ssl=self._api.websocket_trust(),
        ) as platform:
            hello = Hello(
                agent_version=__version__,
                inventory=inventory,
                slices=slices,
                volume_ids=volumes,
                conditions=self._read_conditions(),
            )
            await platform.send(hello.model_dump_json())
            log.info("linked to the platform")
            self._leases.linked()
            self._tasks.report_again()
            self._on_connected()
            try:
                await self._talk(platform)
            except asyncio.CancelledError:
                await platform.close(CloseCode.GOING_AWAY, "the agent stops")
                raise

    async def _talk(self, platform: ClientConnection) -> None:
        """Receive, send and beat until one of the three ends; the other two end with it."""
        parts = [
            asyncio.create_task(self._receive(platform)),
            asyncio.create_task(self._send(platform)),
            asyncio.create_task(self._heartbeat()),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _receive(self, platform: ClientConnection) -> None:
        async for text in platform:
            self.receive(text)

    def receive(self, text: str | bytes) -> None:
        try:
            message = to_agent_adapter.validate_json(text)
        except ValidationError as error:
            # A newer platform may say things that this agent does not know; the rest still counts.
            log.error("cannot read a message of the platform: %s", error)
            self._refuse(text)
            return
        match message:
            case TaskMessage():
                self._tasks.accept(message)
            case TaskAcknowledged():
                self._tasks.acknowledge(message.task_id)
            case OpenStream():
                self._streams.open(message)
            case SetLeases():
                self._leases.set(message)
            case RotateIdentity():
                self._on_rotate()

    def _refuse(self, text: str | bytes) -> None:
        """Answer a task that this agent does not understand, or it would be delivered for ever."""
        try:
            raw = _UnknownTask.model_validate_json(text)
        except ValidationError:
            return
        message = f"agent {__version__} does not know this kind of task"
        self._outbox.put(TaskResult(task_id=raw.task_id, ok=False, message=message))

    async def _send(self, platform: ClientConnection) -> None:
        while True:
            text = await self._outbox.get()
            try:
                await platform.send(text)
            except ConnectionClosed:
                self._outbox.put_back(text)
                raise

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._outbox.put(Heartbeat())
            self._tasks.report_again(older_than=RESEND_SECONDS)
