"""Clients that keep creating projects through whatever happens, and remember what they were told."""

import asyncio
import secrets
from collections import Counter
from dataclasses import dataclass, field

import httpx

from gpuaas_contract.problems import PROBLEM_MEDIA_TYPE
from gpuaas_sdk.client import GpuaasClient

DEADLINE_SECONDS = 60
_TRY_AGAIN = {"idempotency_in_flight", "unavailable", "rate_limited"}


@dataclass
class Load:
    """Every request has a key of its own and is sent with it until it is acknowledged."""

    admin: GpuaasClient
    tenant_id: str
    clients: int = 6
    acknowledged: dict[str, str] = field(default_factory=dict)
    """The name that was asked for, to the id that came back with a success."""
    refusals: Counter[tuple[int, str]] = field(default_factory=Counter)
    lost_answers: int = 0
    surprises: list[str] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until `stopping` is set; then what is under way is brought to its end."""
        token = (await self.admin.fetch_token()).access_token
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=self.admin.api_url, headers=headers, timeout=20) as http:
            await asyncio.gather(*(self._client(http) for _ in range(self.clients)))

    async def _client(self, http: httpx.AsyncClient) -> None:
        while not self.stopping.is_set():
            await self._create(http, f"p{secrets.token_hex(6)}")

    async def _create(self, http: httpx.AsyncClient, name: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_SECONDS
        body = {"tenant_id": self.tenant_id, "name": name}
        while loop.time() < deadline:
            try:
                answer = await http.post("/v1/projects", json=body, headers={"Idempotency-Key": f"key-{name}"})
            except httpx.TransportError:
                self.lost_answers += 1
                await asyncio.sleep(0.1)
                continue
            if answer.status_code == 201:
                self.acknowledged[name] = answer.json()["id"]
                return
            if not self._is_expected(answer):
                self.surprises.append(f"{answer.status_code} {answer.text}")
                return
            await asyncio.sleep(0.1)
        self.surprises.append(f"{name} was not acknowledged within {DEADLINE_SECONDS} s")

    def _is_expected(self, answer: httpx.Response) -> bool:
        if answer.headers.get("content-type") != PROBLEM_MEDIA_TYPE:
            return False
        code = answer.json()["code"]
        self.refusals[answer.status_code, code] += 1
        return code in _TRY_AGAIN and int(answer.headers["retry-after"]) >= 1
