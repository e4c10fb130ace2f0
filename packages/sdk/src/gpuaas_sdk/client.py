"""The client of the public API. Nouns are attributes: `await client.allocations.get(…)`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from gpuaas_contract.base import JsonObject
from gpuaas_contract.identity import Principal, Token
from gpuaas_contract.trust import ca_file_of
from gpuaas_sdk import resources
from gpuaas_sdk.correlation import correlation
from gpuaas_sdk.credentials import Credentials, ServiceAccountCredentials
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.transport import Transport

if TYPE_CHECKING:
    from gpuaas_sdk.changes import ChangeFeed
    from gpuaas_sdk.streams import ByteStream


class GpuaasClient:
    """Use as `async with GpuaasClient(url, credentials) as client:`."""

    def __init__(
        self,
        api_url: str,
        credentials: Credentials,
        *,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        user_agent: str = "gpuaas-sdk",
        ca_file: str | Path | None = None,
    ) -> None:
        """`ca_file`: authorities to trust beside the machine's own; GPUAAS_CA_FILE where none is given."""
        self._transport = Transport(
            api_url,
            credentials,
            retry=retry or RetryPolicy(),
            http=transport,
            user_agent=user_agent,
            ca_file=ca_file,
        )

    @classmethod
    def from_service_account_file(
        cls, path: str | Path, *, api_url: str | None = None, ca_file: str | Path | None = None
    ) -> "GpuaasClient":
        credentials = ServiceAccountCredentials.from_file(path)
        url = api_url or credentials.api_url
        if url is None:
            raise ValueError(f"cannot connect: {path} has no api_url, and none was given")
        return cls(url, credentials, ca_file=ca_file_of(ca_file) or credentials.ca_file)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    @property
    def api_url(self) -> str:
        return self._transport.api_url

    @property
    def ca_file(self) -> str | Path | None:
        return self._transport.ca_file

    @staticmethod
    def correlation(correlation_id: str | None = None) -> AbstractContextManager[str]:
        """Give all calls in a block one correlation id: `with client.correlation() as id:`."""
        return correlation(correlation_id)

    async def principal(self) -> Principal:
        """Ask the platform who the caller is."""
        return await self._transport.get("/principal", Principal)

    async def openapi(self) -> JsonObject:
        """Fetch the OpenAPI document of the platform. Needs no login."""
        response = await self._transport.send("GET", f"{self.api_url}/openapi.json", authenticated=False)
        document: JsonObject = response.json()
        return document

    async def fetch_token(self) -> Token:
        """Fetch a new token with the credentials, for callers that keep it (the CLI's login)."""
        return await self._transport.fetch_token()

    async def token(self) -> str:
        """Return the current token, renewed if it is about to expire: for a process that acts for us."""
        return await self._transport.token()

    async def revoke_token(self, token: str) -> None:
        """End the login behind a refresh or access token; one that has ended already is accepted (RFC 7009)."""
        await self._transport.send("POST", "/oauth/revoke", form={"token": token}, authenticated=False)

    def changes(
        self,
        *,
        since: str | None = None,
        nouns: Sequence[str] = (),
        tenant_id: str | None = None,
        project_id: str | None = None,
        instance_id: str | None = None,
        stream: bool = False,
    ) -> "ChangeFeed":
        """`since="start"` begins with the oldest change that is kept; `stream` reads server-sent events."""
        from gpuaas_sdk.changes import ChangeFeed

        filters = {"noun": [*nouns] or None, "tenant_id": tenant_id, "project_id": project_id}
        return ChangeFeed(self._transport, since=since, filters={**filters, "instance_id": instance_id}, stream=stream)

    async def open_stream(self, grant_id: str, allocation_id: str) -> "ByteStream":
        from gpuaas_sdk.streams import open_stream

        return await open_stream(self._transport, grant_id, allocation_id)

    async def open_port(self, member_id: str, port: str) -> "ByteStream":
        """Open one connection to a port that an app declares for people, through the agent of the member's machine."""
        from gpuaas_sdk.streams import open_port

        return await open_port(self._transport, member_id, port)

    tenants = cached_property(lambda self: resources.Tenants(self._transport))
    projects = cached_property(lambda self: resources.Projects(self._transport))
    users = cached_property(lambda self: resources.Users(self._transport))
    memberships = cached_property(lambda self: resources.Memberships(self._transport))
    service_accounts = cached_property(lambda self: resources.ServiceAccounts(self._transport))
    sessions = cached_property(lambda self: resources.Sessions(self._transport))
    join_tokens = cached_property(lambda self: resources.JoinTokens(self._transport))
    nodes = cached_property(lambda self: resources.Nodes(self._transport))
    allocations = cached_property(lambda self: resources.Allocations(self._transport))
    usage = cached_property(lambda self: resources.Usage(self._transport))
    volumes = cached_property(lambda self: resources.Volumes(self._transport))
    quotas = cached_property(lambda self: resources.Quotas(self._transport))
    apps = cached_property(lambda self: resources.Apps(self._transport))
    app_versions = cached_property(lambda self: resources.AppVersions(self._transport))
    history = cached_property(lambda self: resources.History(self._transport))
    entitlements = cached_property(lambda self: resources.Entitlements(self._transport))
    artifacts = cached_property(lambda self: resources.Artifacts(self._transport))
    trusted_keys = cached_property(lambda self: resources.TrustedKeys(self._transport))
    registry = cached_property(lambda self: resources.Registries(self._transport))
    instances = cached_property(lambda self: resources.Instances(self._transport))
    bulk_operations = cached_property(lambda self: resources.BulkOperations(self._transport))
    members = cached_property(lambda self: resources.Members(self._transport))
    operations = cached_property(lambda self: resources.Operations(self._transport))
    reconcile_leases = cached_property(lambda self: resources.ReconcileLeases(self._transport))
    """The leases under which a controller observes an instance."""
    preflights = cached_property(lambda self: resources.Preflights(self._transport))
    """Checks for obstacles before anything is changed."""
    app_usage = cached_property(lambda self: resources.AppUsage(self._transport))
    """The usage that apps report for their instances."""
    deliveries = cached_property(lambda self: resources.Deliveries(self._transport))
    credentials = cached_property(lambda self: resources.AccessCredentials(self._transport))
    """SSH keys for machines outside of the project's SSH authority."""
    secrets = cached_property(lambda self: resources.Secrets(self._transport))
    secret_deliveries = cached_property(lambda self: resources.SecretDeliveries(self._transport))
    grants = cached_property(lambda self: resources.Grants(self._transport))
    ssh_authorities = cached_property(lambda self: resources.SshAuthorities(self._transport))
    ssh_keys = cached_property(lambda self: resources.SshKeys(self._transport))
    """The caller's own SSH public keys."""
    audit = cached_property(lambda self: resources.Audit(self._transport))
    receipts = cached_property(lambda self: resources.Receipts(self._transport))
