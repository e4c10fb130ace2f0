"""Browser terminals: a WebSocket on one side, a shell on a machine on the other. See docs/reference/terminal.md."""

import asyncio
import json
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from fastapi import WebSocket, WebSocketDisconnect

from gpuaas_platform.access.adapters.terminal import ShellLogin, make_key, open_shell
from gpuaas_platform.access.records import AccessGrantRecord
from gpuaas_platform.access.routes.streams import Joined, StreamBroker, carry
from gpuaas_platform.access.service.people import TerminalAccess
from gpuaas_platform.allocations.records import AllocationView
from gpuaas_platform.identity.rules.policy import Caller
from gpuaas_platform.platform import Platform

if TYPE_CHECKING:
    import asyncssh

log = structlog.get_logger()
CHUNK = 32 * 1024
MOST_COLUMNS = 1_000
SUBPROTOCOL = "gpuaas.terminal"
ENDED, IDLE, REVOKED, GONE = "ended", "idle", "revoked", "gone"
"""Why a terminal ended: the shell did, nobody typed, the right ended, the browser went away."""


class Terminal:
    """One session: from the first byte to the entry in the audit trail that says how long it was."""

    def __init__(self, platform: Platform, broker: StreamBroker, caller: Caller, correlation_id: str) -> None:
        self._platform = platform
        self._broker = broker
        self._caller = caller
        self._correlation_id = correlation_id
        self._typed_at = time.monotonic()

    async def serve(self, websocket: WebSocket, allocation_id: str, size: tuple[int, int]) -> None:
        key = make_key()
        public_key = key.export_public_key().decode().strip()
        given: TerminalAccess = await self._platform.person_access.open_terminal(
            self._caller, self._correlation_id, allocation_id, public_key
        )
        how = ShellLogin(
            host_principal=allocation_id,
            login=given.grant.login,
            key=key,
            certificate=given.grant.certificate,
            host_authorities=given.grant.host_authority.splitlines(),
        )
        async with self._broker.join(given.access, given.machine, self._correlation_id) as joined:
            ours, theirs = socket.socketpair()
            carrier = asyncio.create_task(_carry(joined, theirs))
            try:
                async with open_shell(ours, how, size) as shell:
                    offered = websocket.scope.get("subprotocols") or []
                    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
                    await self._converse(websocket, shell, joined, given.machine, given.access)
            finally:
                carrier.cancel()
                await asyncio.gather(carrier, return_exceptions=True)

    async def _converse(
        self,
        websocket: WebSocket,
        shell: "asyncssh.SSHClientProcess[bytes]",
        joined: Joined,
        machine: AllocationView,
        access: AccessGrantRecord,
    ) -> None:
        started = time.monotonic()
        await self._note("terminal.open", machine, {"grant": access.id, "login": access.login})
        reason = GONE
        try:
            reason = await self._until_over(websocket, shell, joined)
            with suppress(RuntimeError, WebSocketDisconnect):
                status = shell.exit_status if reason == ENDED else None
                await websocket.send_text(json.dumps({"type": "end", "reason": reason, "exit_status": status}))
                await websocket.close()
        finally:
            detail = {"grant": access.id, "login": access.login, "reason": reason}
            await self._note("terminal.close", machine, {**detail, "seconds": round(time.monotonic() - started, 1)})

    async def _until_over(self, websocket: WebSocket, shell: "asyncssh.SSHClientProcess[bytes]", joined: Joined) -> str:
        self._typed_at = time.monotonic()
        parts = {
            asyncio.create_task(self._from_browser(websocket, shell)): GONE,
            asyncio.create_task(_from_shell(websocket, shell)): ENDED,
            asyncio.create_task(joined.cut.wait()): REVOKED,
            asyncio.create_task(self._until_idle()): IDLE,
        }
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            # The machine hangs up when the right ends, too: that is the reason then.
            reasons = {parts[part] for part in done}
            await asyncio.sleep(0)
            return REVOKED if joined.cut.is_set() else min(reasons)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _from_browser(self, websocket: WebSocket, shell: "asyncssh.SSHClientProcess[bytes]") -> None:
        """Bytes are what was typed; texts are about the terminal itself."""
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("bytes") is not None:
                    self._typed_at = time.monotonic()
                    shell.stdin.write(message["bytes"])
                    await shell.stdin.drain()
                elif (size := read_size(message.get("text") or "")) is not None:
                    shell.change_terminal_size(*size)

    async def _until_idle(self) -> None:
        limit = self._platform.stream_limits.terminal_idle_seconds
        while True:
            left = self._typed_at + limit - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)

    async def _note(self, action: str, machine: AllocationView, detail: dict[str, object]) -> None:
        try:
            async with self._platform.database.transaction(self._caller.id, self._correlation_id) as tx:
                await tx.audit_owned(action, machine, detail)
        except Exception:
            if action == "terminal.open":
                raise
            log.exception("cannot_note_end_of_terminal", **detail)


def read_size(text: str) -> tuple[int, int] | None:
    """`{"type": "resize", "columns": 120, "rows": 40}`; anything else is no size, and is passed over."""
    try:
        message = json.loads(text)
        columns, rows = message["columns"], message["rows"]
    except (ValueError, KeyError, TypeError):
        return None
    fits = all(isinstance(number, int) and 1 <= number <= MOST_COLUMNS for number in (columns, rows))
    return (columns, rows) if message.get("type") == "resize" and fits else None


async def _from_shell(websocket: WebSocket, shell: "asyncssh.SSHClientProcess[bytes]") -> None:
    while content := await shell.stdout.read(CHUNK):
        await websocket.send_bytes(content)
    await shell.wait_closed()


async def _carry(joined: Joined, end: socket.socket) -> None:
    """Between the socket that SSH speaks on and the agent's stream."""
    reader, writer = await asyncio.open_connection(sock=end)

    async def receive() -> bytes:
        if content := await reader.read(CHUNK):
            return content
        raise EOFError

    async def send(content: bytes) -> None:
        writer.write(content)
        await writer.drain()

    try:
        await carry(joined, receive, send)
    finally:
        writer.close()
