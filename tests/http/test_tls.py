"""HTTPS on real sockets: the certificate, its renewal, its refusals; time-outs; what plain HTTP may not do."""

import asyncio
import json
import secrets
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import websockets

from gpuaas_contract.nodes import Capacity
from gpuaas_contract.trust import client_context
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import CertificateError, TransportError
from gpuaas_sdk.retry import NO_RETRY
from gpuaas_stack.authority import Authority
from gpuaas_stack.settings import Settings
from tests.http.test_nodes import enrolled, status_is
from tests.support.processes import ApiProcess
from tests.support.services import admin_credentials
from tests.support.waiting import until

NAMES = ("127.0.0.1", "localhost", "gpuaas.example")


def make_authority(directory: Path, names: tuple[str, ...] = NAMES, *, days_ago: int = 0) -> Authority:
    authority = Authority(directory, names)
    authority.ensure(datetime.now(UTC) - timedelta(days=days_ago))
    return authority


def with_tls(settings: Settings, authority: Authority, **more: str) -> ApiProcess:
    chosen = {"tls": f"{authority.pair}:{authority.pair}", "ca_file": authority.ca_file}
    return ApiProcess(settings.model_copy(update=chosen), None, port=None, **more)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A certificate that is good for some weeks, and due to be renewed."""
    return make_authority(tmp_path / "tls", days_ago=70)


@pytest.fixture
def secure(settings: Settings, authority: Authority) -> Iterator[str]:
    with with_tls(settings, authority, tls_check_seconds="0.05", request_header_seconds="30").serving() as url:
        yield url


@asynccontextmanager
async def client_of(url: str, settings: Settings, ca_file: Path | None) -> AsyncIterator[GpuaasClient]:
    credentials = PasswordCredentials(*admin_credentials(settings))
    async with GpuaasClient(url, credentials, retry=NO_RETRY, ca_file=ca_file) as client:
        yield client


async def shown_by(url: str, ca_file: Path) -> bytes:
    """The certificate that a new connection is shown."""
    host, _, port = url.removeprefix("https://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=client_context(url, ca_file))
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(found, bytes)
    return found


async def test_clients_speak_https_with_who_they_trust(secure: str, settings: Settings, authority: Authority) -> None:
    assert secure.startswith("https://")
    async with client_of(secure, settings, authority.ca_file) as client:
        assert (await client.principal()).name == admin_credentials(settings)[0]
        token = await client.token()
    trust = client_context(secure, authority.ca_file)
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(
            secure.replace("https", "wss") + "/v1/agent/link",
            additional_headers={"Authorization": f"Bearer {token}"},
            ssl=trust,
        )
    assert refused.value.response.status_code in {401, 403}
    async with client_of(secure, settings, None) as client:
        with pytest.raises(CertificateError, match=r"authority that is not trusted here.*--ca-file"):
            await client.principal()
    async with client_of(secure.replace("https:", "http:"), settings, None) as client:
        with pytest.raises(TransportError, match="https://"):
            await client.principal()
    async with client_of(settings.api_url.replace("http:", "https:"), settings, authority.ca_file) as client:
        with pytest.raises(CertificateError, match=r"does not speak TLS.*http://"):
            await client.principal()


async def test_a_replaced_certificate_is_shown_without_a_restart(
    secure: str, settings: Settings, authority: Authority
) -> None:
    async def another_than(old: bytes) -> bytes:
        async def is_another() -> bool:
            return await shown_by(secure, authority.ca_file) != old

        await until(is_another, "new connections are shown the new certificate")
        return await shown_by(secure, authority.ca_file)

    before = await shown_by(secure, authority.ca_file)
    async with httpx.AsyncClient(base_url=secure, verify=client_context(secure, authority.ca_file)) as kept:
        await kept.get("/healthz")
        assert authority.renew()
        renewed = await another_than(before)
        assert (await kept.get("/healthz")).status_code == 200, "a connection from before goes on"
    authority.pair.write_text("-----BEGIN CERTIFICATE-----\nhalf")
    log = settings.state_dir / "logs" / f"api-{secure.rpartition(':')[2]}.log"

    async def is_refused() -> bool:
        return "certificate_refused" in log.read_text()

    await until(is_refused, "half a file is refused")
    assert await shown_by(secure, authority.ca_file) == renewed, "half a file changes nothing"
    authority.pair.unlink()
    assert authority.renew()
    await another_than(renewed)


async def test_clients_say_what_is_wrong_with_a_certificate(settings: Settings, tmp_path: Path) -> None:
    """The server is one that does not look at its own certificate, as one whose certificate ends while it runs."""

    async def refusal(authority: Authority, host: str) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.pair)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        async with (
            server,
            client_of(f"https://{host}:{server.sockets[0].getsockname()[1]}", settings, authority.ca_file) as client,
        ):
            with pytest.raises(CertificateError) as refused:
                await client.principal()
        return str(refused.value)

    expired = make_authority(tmp_path / "expired", days_ago=100)
    assert "has expired" in await refusal(expired, "127.0.0.1")
    other = make_authority(tmp_path / "other", ("gpuaas.example",))
    words = await refusal(other, "127.0.0.1")
    assert "for another name" in words
    assert "127.0.0.1" in words


def test_a_certificate_that_cannot_be_used_stops_the_start_in_words(settings: Settings, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other", ("gpuaas.example",)).pair
    ended = ApiProcess(settings, tls=f"{other}:{other}").run("serve")
    assert ended.returncode != 0
    assert "it is for gpuaas.example, and clients ask for 127.0.0.1" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_browsers_are_told_to_stay_on_https_but_not_for_loopback_names(secure: str, authority: Authority) -> None:
    async with httpx.AsyncClient(base_url=secure, verify=client_context(secure, authority.ca_file)) as http:
        for host in ("127.0.0.1", "localhost", "LOCALHOST:8470", "demo.localhost", "[::1]:8470", "127.8.9.10"):
            answer = await http.get("/healthz", headers={"Host": host})
            assert "strict-transport-security" not in answer.headers, host
        for path in ("/healthz", "/v1/tenants", "/nowhere"):
            answer = await http.get(path, headers={"Host": "gpuaas.example:8470"})
            assert answer.headers["strict-transport-security"] == "max-age=31536000", path


async def test_a_proxy_that_is_trusted_says_who_came_over_https(settings: Settings) -> None:
    email, password = admin_credentials(settings)
    said = {"Host": "gpuaas.example", "X-Forwarded-Proto": "https"}

    async def look(url: str, said: dict[str, str]) -> tuple[bool, int]:
        async with httpx.AsyncClient(base_url=url, headers=said) as http:
            health = await http.get("/healthz")
            opened = await http.post("/v1/auth/session", json={"email": email, "password": password})
            return "strict-transport-security" in health.headers, opened.status_code

    assert await look(settings.api_url, said) == (False, 403), "nobody is trusted who is not named"
    with ApiProcess(settings, trusted_proxies="10.0.0.0/8, 127.0.0.1").serving() as url:
        assert await look(url, said) == (True, 201)
        for wrong in ("http", "", "https, http", "ftp", "https\tx"):
            assert await look(url, {**said, "X-Forwarded-Proto": wrong}) == (False, 403), wrong


async def test_a_log_in_says_why_no_session_can_be_kept(settings: Settings) -> None:
    email, password = admin_credentials(settings)
    body = {"email": email, "password": password}
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        plain = await http.post("/v1/auth/session", json=body, headers={"Host": "gpuaas.example"})
        assert (plain.status_code, plain.json()["code"]) == (403, "https_required")
        assert "gpuaas.example over plain http" in plain.json()["detail"]
        assert "GPUAAS_TLS" in plain.json()["detail"]
        assert "set-cookie" not in plain.headers
        for headers in ({}, {"Host": "localhost"}, {"Host": "127.0.0.1:1"}):
            kept = await http.post("/v1/auth/session", json=body, headers=headers)
            assert kept.status_code == 201, headers
            assert "Secure" in kept.headers["set-cookie"]
            http.cookies.clear()


async def test_a_session_is_kept_behind_the_public_address(settings: Settings) -> None:
    email, password = admin_credentials(settings)
    with ApiProcess(settings, public_url="https://gpuaas.example").serving() as url:
        async with httpx.AsyncClient(base_url=url) as http:
            for host, expected in (("gpuaas.example", 201), ("other.example", 403)):
                body, headers = {"email": email, "password": password}, {"Host": host}
                assert (await http.post("/v1/auth/session", json=body, headers=headers)).status_code == expected


def test_plain_http_for_other_machines_is_warned_of(settings: Settings) -> None:
    exposed = ApiProcess(settings, api_host="0.0.0.0")
    with exposed.serving():
        warned = [json.loads(line) for line in exposed.log.read_text().splitlines() if '"plain_http"' in line]
    assert warned[0]["level"] == "warning"
    assert "0.0.0.0 without TLS" in warned[0]["detail"]
    local = ApiProcess(settings)
    with local.serving():
        assert "plain_http" not in local.log.read_text()


class SlowClient:
    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        host, _, port = url.partition("://")[2].partition(":")
        plain = socket.create_connection((host, int(port)), timeout=30)
        self._socket = plain if context is None else context.wrap_socket(plain, server_hostname=host)

    def __enter__(self) -> "SlowClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, text: str) -> None:
        self._socket.sendall(text.encode())

    def read_to_end(self) -> str:
        """Until the server has closed the connection, which the time-out of the socket waits for."""
        found = b""
        while piece := self._socket.recv(4096):
            found += piece
        return found.decode()

    def read_answer(self) -> str:
        found = b""
        while b"\r\n\r\n" not in found:
            found += self._socket.recv(1)
        return found.decode()


def test_headers_that_do_not_come_end_the_connection(settings: Settings, authority: Authority) -> None:
    with with_tls(settings, authority, request_header_seconds="0.3").serving() as url:
        trust = client_context(url, authority.ca_file)
        with SlowClient(url, trust) as half, SlowClient(url, trust) as silent, SlowClient(url, trust) as drop:
            half.send("GET /healthz HTTP/1.1\r\nHost: x\r\n")
            drop.send("G")
            assert half.read_to_end().startswith("HTTP/1.1 408 ")
            assert silent.read_to_end() == "", "one that says nothing is closed, and told nothing"
            assert drop.read_to_end().startswith("HTTP/1.1 408 ")


def test_only_headers_are_waited_for_briefly(settings: Settings) -> None:
    """A second request on the connection has its own time, and what takes long to answer is not cut."""
    with ApiProcess(settings, request_header_seconds="0.3", feed_heartbeat_seconds="0.2").serving() as url:
        email, password = admin_credentials(settings)
        token = httpx.post(f"{url}/v1/auth/login", json={"email": email, "password": password}).json()["access_token"]
        with httpx.stream(
            "GET",
            f"{url}/v1/changes",
            headers={"Authorization": f"Bearer {token}", "Accept": "text/event-stream"},
            timeout=30,
        ) as feed:
            assert feed.status_code == 200, feed.read()
            beats = feed.iter_lines()
            for _ in range(8):
                next(beats)
        with SlowClient(url) as client:
            client.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.read_answer().startswith("HTTP/1.1 200 ")
            client.send("GET /healthz HTTP/1.1\r\n")
            assert "HTTP/1.1 408 " in client.read_to_end()


def test_a_body_that_does_not_come_ends_the_connection(settings: Settings) -> None:
    body = '{"email": "a@example.com", "password": "wrong"}'
    head = "POST /v1/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    limits = {"request_header_seconds": "30", "request_body_seconds": "0.3"}
    with (
        ApiProcess(settings, None, port=None, **limits).serving() as url,
        SlowClient(url) as half,
        SlowClient(url) as whole,
    ):
        half.send(f"{head}Content-Length: {len(body)}\r\n\r\n{body[:-1]}")
        assert half.read_to_end() == ""
        whole.send(f"{head}Content-Length: {len(body)}\r\n\r\n{body}")
        assert whole.read_answer().startswith("HTTP/1.1 401 ")


async def test_a_websocket_outlives_the_limits_of_requests(settings: Settings, admin: GpuaasClient) -> None:
    node = await enrolled(admin, f"node-{secrets.token_hex(4)}")
    node.capacity = Capacity(cpus=0, memory_mib=0, disk_gib=0, gpus=0)
    limits = {"request_header_seconds": "0.3", "request_body_seconds": "0.3"}
    with ApiProcess(settings, None, port=None, **limits).serving() as url:
        link_url, headers = f"{url.replace('http', 'ws', 1)}/v1/agent/link", {"Authorization": f"Bearer {node.token()}"}
        async with websockets.connect(link_url, additional_headers=headers) as link:
            await link.send(node.hello().model_dump_json())
            # Begun after the link, so whatever ends by these limits has ended when these two have.
            for sent in ("GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"):
                with SlowClient(url) as slow:
                    slow.send(sent)
                    await asyncio.to_thread(slow.read_to_end)
            await asyncio.wait_for(await link.ping(), 30)
        await status_is(admin, node, "offline")


async def test_metrics_are_for_who_shows_their_token_and_for_administrators(
    settings: Settings, admin: GpuaasClient
) -> None:
    token = settings.metrics_token_file.read_text().strip()
    assert stat.S_IMODE(settings.metrics_token_file.stat().st_mode) == 0o600

    async def status(shown: str | None) -> int:
        headers = {} if shown is None else {"Authorization": shown}
        async with httpx.AsyncClient(base_url=settings.api_url) as http:
            return (await http.get("/metrics", headers=headers)).status_code

    assert await status(f"Bearer {token}") == 200
    assert await status(f"Bearer {await admin.token()}") == 200
    for wrong in (None, "", "Bearer", f"Bearer {token[:-1]}", f"Basic {token}", "Bearer ümlaut".encode()):
        assert await status(wrong) == 401, wrong  # type: ignore[arg-type]


async def test_metrics_without_a_usable_token_file_are_for_administrators_only(
    settings: Settings, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for file in (str(empty), str(tmp_path / "missing")):
        with ApiProcess(settings, metrics_token_file=file).serving() as url:
            async with httpx.AsyncClient(base_url=url) as http:
                for shown in ("", "Bearer", "Bearer x"):
                    assert (await http.get("/metrics", headers={"Authorization": shown})).status_code == 401
