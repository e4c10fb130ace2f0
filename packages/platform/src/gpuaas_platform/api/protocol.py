"""HTTP on one connection: uvicorn's, which waits for ever for the rest of a request, with an end to that patience."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class PunctualProtocol(H11Protocol):
    """Cuts a connection whose request line and headers are not complete in time, from the first byte or, on a new
    connection, from its beginning; and one whose body is not, from the end of the headers. Answers and WebSockets may
    take as long as they like."""

    header_seconds = 15.0
    body_seconds = 60.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: object | None = None
        self._began = False
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        self._began = True
        super().data_received(data)
        if not self._upgraded:
            self._wait_for(self.conn.their_state)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        # Another protocol has the connection from now on; as far as this one knows, a body is still to come.
        self._upgraded = True
        self._wait_for(None)
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(None)
        super().connection_lost(exc)

    def _wait_for(self, state: object | None) -> None:
        """Start the clock when the client comes into a state, not with each byte that it sends there."""
        if state is self._awaited and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._awaited = state
        limits: dict[object, float] = {h11.IDLE: self.header_seconds, h11.SEND_BODY: self.body_seconds}
        seconds = limits.get(state)
        if seconds is not None and not self.transport.is_closing():
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self.conn.their_state is not self._awaited:
            return
        if self._began and self.conn.our_state is h11.IDLE:
            headers = [("content-length", "0"), ("connection", "close")]
            answer = h11.Response(status_code=408, headers=headers, reason=b"Request Timeout")
            self.transport.write((self.conn.send(answer) or b"") + (self.conn.send(h11.EndOfMessage()) or b""))
        self.transport.close()


def punctual(header_seconds: float, body_seconds: float) -> type[PunctualProtocol]:
    """Make the protocol with limits of its own."""
    limits = {"header_seconds": header_seconds, "body_seconds": body_seconds}
    return type("PunctualProtocol", (PunctualProtocol,), limits)
