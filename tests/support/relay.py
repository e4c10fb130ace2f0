"""A way to a server that can be cut: it counts what is sent, and stops or breaks after so many bytes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE = 64 * 1024


class Relay:
    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.sent = 0
        self.received = 0
        self.limit: int | None = None
        """Of bytes to the server; past it nothing is sent on."""
        self.breaks = False
        """Past the limit the connection breaks, and the limit is gone; otherwise it hangs."""
        self.hangs = threading.Event()
        self.away = False

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.away:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(PIECE):
                if self.limit is not None and self.sent >= self.limit:
                    if self.breaks:
                        self.limit = None
                        break
                    self.hangs.set()
                    # Until whoever sends is gone; what it had sent and we had not taken is lost with it.
                    while client.recv(PIECE):
                        pass
                    break
                with self._lock:
                    self.sent += len(data)
                server.sendall(data)
        self._close(client, server)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(PIECE):
                with self._lock:
                    self.received += len(data)
                client.sendall(data)
        self._close(client, server)

    def _close(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            with self._lock:
                self._open.discard(one)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close(*list(self._open))


@contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    relay = Relay(port)
    threading.Thread(target=relay.serve, daemon=True).start()
    try:
        yield relay
    finally:
        relay.close()
