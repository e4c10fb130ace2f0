"""A platform of canned answers."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

AT = "2026-01-01T00:00:00Z"
PROJECT = {
    "id": "prj_00000000000000000000000001",
    "tenant_id": "ten_00000000000000000000000001",
    "name": "research",
    "title": "Research",
    "revision": 1,
    "created_at": AT,
    "updated_at": AT,
}
INSTANCE = {
    "id": "ins_00000000000000000000000001",
    "project_id": PROJECT["id"],
    "app_slug": "demo",
    "app_version_id": "apv_1",
    "name": "first",
    "inputs": {},
    "placement_intent": [],
    "desired_state": "running",
    "generation": 1,
    "status": "running",
    "versions": {"app": "1.0.0", "expected_runtime": "demo 1"},
    "correlation_id": "cor_1",
    "revision": 1,
    "created_at": AT,
    "updated_at": AT,
}


class StubPlatform:
    """Answers by method and path; other requests get 404."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"GET /v1/projects": (200, {"items": [PROJECT]})}
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.paths: list[str] = []
        """With their queries."""
        self.url = ""

    def answer(self, request: str, body: Any, status: int = 200) -> None:
        self.answers[request] = (status, body)

    def problem(self, request: str, code: str, status: int, **more: Any) -> None:
        body = {"type": "x", "title": code, "status": status, "detail": f"cannot: {code}", "code": code}
        self.answer(request, {**body, "correlation_id": "cor_stub", **more}, status)


@contextmanager
def serve(tls: ssl.SSLContext | None = None) -> Iterator[StubPlatform]:
    """Answer on a port of its own, over TLS where a context is given."""
    stub = StubPlatform()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = f"{self.command} {self.path.split('?')[0]}"
            stub.paths.append(self.path)
            stub.requests.append((request, {k.lower(): v for k, v in self.headers.items()}, content))
            missing = {"type": "x", "title": "not found", "status": 404, "detail": f"no answer for {request}"}
            status, body = stub.answers.get(
                request, (404, {**missing, "code": "not_found", "correlation_id": "cor_stub"})
            )
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    stub.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield stub
    server.shutdown()
    server.server_close()
