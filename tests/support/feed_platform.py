"""A platform for tests of the change feed: settings can be chosen, processes killed, a second one added."""

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pydantic import SecretStr

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, StaticToken
from gpuaas_sdk.events import Event, parse_events
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_stack.postgres import DATABASE
from gpuaas_stack.settings import Settings
from tests.support.ports import free_port
from tests.support.processes import ApiProcess, fresh_database
from tests.support.services import admin_credentials, openbao_of

PATIENT = RetryPolicy(attempts=60, first_delay=0.1, longest_delay=0.5)
FIRST = "api"


@dataclass
class FeedPlatform:
    settings: Settings
    database_url: str
    running: ExitStack
    environment: dict[str, str]
    processes: dict[str, ApiProcess] = field(default_factory=dict)

    @property
    def api_url(self) -> str:
        return self.settings.api_url

    @property
    def vault_addr(self) -> str:
        return openbao_of(self.settings).address

    @property
    def vault_token_file(self) -> Path:
        return openbao_of(self.settings).token_file

    def add_process(self, name: str, port: int | None = None, **environment: str) -> str:
        """Another API process over the same database; returns its address."""
        process = ApiProcess(self.settings, port=port, **{**self.environment, **environment})
        self.processes[name] = process
        return self.running.enter_context(process.serving())

    def stop(self, name: str) -> None:
        """Asks it to end, and waits until it has."""
        self.processes[name].end(signal.SIGTERM)

    def restart(self, name: str, how: signal.Signals) -> None:
        """As a supervisor does after its end; returns when the new one answers."""
        self.processes[name].end(how)
        self.processes[name].start()
        self.processes[name].wait_ready()

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.processes[FIRST].pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    @asynccontextmanager
    async def admin(self, api_url: str | None = None) -> AsyncIterator[GpuaasClient]:
        credentials = PasswordCredentials(*admin_credentials(self.settings))
        async with GpuaasClient(api_url or self.api_url, credentials, retry=PATIENT) as client:
            yield client


@contextmanager
def feed_platform(servers: Settings, **environment: str) -> Iterator[FeedPlatform]:
    """In the servers of the run, with a database of its own."""
    with fresh_database(servers, DATABASE) as url, ExitStack() as running:
        settings = servers.model_copy(update={"api_port": free_port(), "database_url": SecretStr(url)})
        platform = FeedPlatform(settings, url, running, environment)
        platform.add_process(FIRST, settings.api_port)
        yield platform


@asynccontextmanager
async def event_stream(
    api_url: str, token: str, *, last_event_id: str | None = None, **query: str
) -> AsyncIterator[AsyncIterator[Event]]:
    """Server-sent events as they come, with nothing of our own client around them."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    async with (
        httpx.AsyncClient(base_url=api_url, timeout=30, headers=headers) as http,
        http.stream("GET", "/v1/changes", params=query) as response,
    ):
        assert response.status_code == 200, (await response.aread()).decode()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield parse_events(response.aiter_lines())


def client_of(api_url: str, token: str) -> GpuaasClient:
    return GpuaasClient(api_url, StaticToken(token), retry=PATIENT)


class SharedFeed:
    """One platform for the tests of a module, made anew after a test that failed."""

    def __init__(self, servers: Settings, **chosen: str) -> None:
        self._servers = servers
        self._chosen = chosen
        self._running = ExitStack()
        self._platform: FeedPlatform | None = None

    def platform(self) -> FeedPlatform:
        if self._platform is None:
            self._platform = self._running.enter_context(feed_platform(self._servers, **self._chosen))
        return self._platform

    def end(self) -> None:
        self._platform = None
        self._running.close()
