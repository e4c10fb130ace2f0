"""The agent's requests to the platform over HTTP, beside its WebSocket."""

import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from structlog.contextvars import get_contextvars

from gpuaas_agent.errors import (
    PermanentError,
    PlatformUnavailableError,
    RetryLaterError,
    raise_for_problem,
    reason_of,
)
from gpuaas_agent.identity import Identity
from gpuaas_contract.agent_link import ArtifactSource, HostCertificate, HostCertificateRequest
from gpuaas_contract.nodes import AgentKey
from gpuaas_contract.problems import CORRELATION_HEADER, IDEMPOTENCY_HEADER
from gpuaas_contract.trust import TrustError, client_context


class PlatformApi:
    def __init__(self, api_url: str, identity: Identity, ca_file: Path | None = None) -> None:
        self._url = api_url
        self._ca_file = ca_file
        self.identity = identity
        # A registry may send us on to where it keeps its blobs; httpx drops the token there. That place may have a
        # certificate where the platform has none.
        self._client = httpx.AsyncClient(
            base_url=api_url,
            timeout=httpx.Timeout(10, read=60),
            follow_redirects=True,
            verify=client_context("https:", ca_file),
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    def headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.identity.token()}"}
        if found := get_contextvars().get("correlation_id"):
            headers[CORRELATION_HEADER] = found
        return headers

    def websocket_url(self, path: str) -> str:
        return f"ws{self._url.removeprefix('http')}{path}"

    def websocket_trust(self) -> ssl.SSLContext | None:
        """The context for a WebSocket, read anew for each one: the authority may have been replaced meanwhile."""
        if not self._url.startswith("https:"):
            return None
        try:
            return client_context(self._url, self._ca_file)
        except TrustError as error:
            raise PlatformUnavailableError(str(error)) from None

    async def create_host_certificate(self, allocation_id: str, public_key: str) -> HostCertificate:
        body = HostCertificateRequest(allocation_id=allocation_id, public_key=public_key)
        key = hashlib.sha256(f"{allocation_id}\n{public_key}".encode()).hexdigest()
        headers = self.headers() | {IDEMPOTENCY_HEADER: key}
        try:
            answer = await self._client.post(
                "/v1/agent/host-certificates", json=body.model_dump(mode="json"), headers=headers
            )
        except httpx.TransportError as error:
            raise PlatformUnavailableError(f"{self._url} does not answer: {reason_of(error)}") from error
        raise_for_problem(answer, answer.content)
        return HostCertificate.model_validate_json(answer.content)

    async def offer_key(self, public_key_pem: str) -> None:
        """Offer the platform the key that this node wants to use next."""
        body = AgentKey(public_key_pem=public_key_pem).model_dump(mode="json")
        try:
            answer = await self._client.post("/v1/agent/identity", json=body, headers=self.headers())
        except httpx.TransportError as error:
            raise PlatformUnavailableError(f"{self._url} does not answer: {reason_of(error)}") from error
        raise_for_problem(answer, answer.content)

    async def locate_artifact(self, digest: str) -> ArtifactSource:
        try:
            answer = await self._client.get(f"/v1/agent/artifacts/{digest}", headers=self.headers())
        except httpx.TransportError as error:
            raise PlatformUnavailableError(f"{self._url} does not answer: {reason_of(error)}") from error
        raise_for_problem(answer, answer.content)
        return ArtifactSource.model_validate_json(answer.content)

    @asynccontextmanager
    async def artifact(self, digest: str, *, offset: int = 0) -> AsyncIterator[httpx.Response]:
        """The bytes of an artifact from `offset` on; status 206 says that the offset was honoured."""
        source = await self.locate_artifact(digest)
        headers = {"Authorization": f"Bearer {source.token}"} | ({"Range": f"bytes={offset}-"} if offset else {})
        try:
            async with self._client.stream("GET", source.url, headers=headers) as answer:
                if answer.status_code == 404:
                    raise PermanentError(f"the registry has no file {digest} any more")
                if not answer.is_success:
                    raise RetryLaterError(f"the registry refused {digest}: {answer.status_code}")
                yield answer
        except httpx.TransportError as error:
            raise PlatformUnavailableError(f"the download of {digest} broke off: {reason_of(error)}") from error
