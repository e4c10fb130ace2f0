"""A platform of canned answers on a real port, and a home directory of its own."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .cli_test_platform import StubPlatform


@pytest.fixture
def platform() -> Iterator[StubPlatform]:
    stub = StubPlatform()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = f"{self.command} {self.path.split('?')[0]}"
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

        do_POST = do_PUT = do_GET  # noqa: N815 - http.server's names

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield stub
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the settings of whoever runs the tests."""
    for name in ("API_URL", "TOKEN", "CONTEXT", "PROJECT", "PASSWORD", "DEBUG"):
        monkeypatch.delenv(f"GPUAAS_{name}", raising=False)
    monkeypatch.setenv("GPUAAS_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpuaas_cli.output.format", "table")
    return tmp_path


@pytest.fixture
def logged_in(platform: StubPlatform, monkeypatch: pytest.MonkeyPatch) -> StubPlatform:
    monkeypatch.setenv("GPUAAS_API_URL", platform.url)
    monkeypatch.setenv("GPUAAS_TOKEN", "t0ken")
    return platform
