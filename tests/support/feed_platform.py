"""A platform of its own for tests of the change feed: settings can be chosen, processes killed, a second one added."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, StaticToken
from gpuaas_sdk.events import Event, parse_events
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_stack import platform_services
from gpuaas_stack.service import Ready, Service
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from tests.support.services import admin_credentials, free_port, own_stack
from tests.support.waiting import wait_until

PATIENT = RetryPolicy(attempts=60, first_delay=0.1, longest_delay=0.5)


@dataclass
class FeedPlatform:
    stack: Stack
    settings: Settings
    database_url: str
    vault_addr: str
    vault_token_file: Path
    service: Service

    @property
    def api_url(self) -> str:
        return self.settings.api_url

    def add_process(self, name: str) -> str:
        """Another API process over the same database; returns its address."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        env = {**self.service.env, "GPUAAS_API_PORT": str(port)}
        service = replace(self.service, name=name, env=env, ready=Ready("http", f"{url}/readyz"))
        self.stack.supervision.ensure_service(service)
        self.stack.supervision.wait_ready(name)
        return url

    def pid(self, name: str = "api") -> int:
        state = next(state for state in self.stack.supervision.states() if state.name == name)
        assert state.process is not None
        return state.process.pid

    def end(self, name: str, how: signal.Signals) -> None:
        """The supervisor starts it again; returns when the new one answers."""
        old = self.pid(name)
        os.kill(old, how)
        wait_until(lambda: self._is_back(name, old), f"{name} runs again after {how.name}")

    def _is_back(self, name: str, old: int) -> bool:
        found = [state for state in self.stack.supervision.states() if state.name == name]
        return (
            bool(found) and found[0].phase == "ready" and found[0].process is not None and found[0].process.pid != old
        )

    def memory_mib(self, name: str = "api") -> float:
        status = Path(f"/proc/{self.pid(name)}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    @asynccontextmanager
    async def admin(self, api_url: str | None = None) -> AsyncIterator[GpuaasClient]:
        credentials = PasswordCredentials(*admin_credentials(self.settings))
        async with GpuaasClient(api_url or self.api_url, credentials, retry=PATIENT) as client:
            yield client


@contextmanager
def feed_platform(environment: str, **env: str) -> Iterator[FeedPlatform]:
    with own_stack(environment) as stack:
        settings = stack.settings
        database_url = stack._ensure_database()
        vault_addr, token_file = stack._ensure_vault()
        platform_services.ensure_admin_file(settings)
        service = platform_services.api_service(settings, database_url, vault_addr, token_file)
        service = replace(service, env={**service.env, **env})
        stack.supervision.ensure_service(service)
        stack.supervision.wait_ready(service.name)
        yield FeedPlatform(stack, settings, database_url, vault_addr, token_file, service)


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
