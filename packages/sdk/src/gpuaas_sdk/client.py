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
from gpuaas_sdk.correlation import correlation
from gpuaas_sdk.credentials import Credentials, ServiceAccountCredentials
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.transport import Transport

# The nouns are imported when they are first used: a command of the CLI needs one or two of them, and the
# wire models of all of them would be most of its start-up time.
if TYPE_CHECKING:
    from gpuaas_sdk.changes import ChangeFeed
    from gpuaas_sdk.resources.allocations import Allocations
    from gpuaas_sdk.resources.app_usage import AppUsage
    from gpuaas_sdk.resources.artifacts import Artifacts, Registries, TrustedKeys
    from gpuaas_sdk.resources.audit import Audit
    from gpuaas_sdk.resources.catalogue import Apps, AppVersions
    from gpuaas_sdk.resources.credentials import AccessCredentials
    from gpuaas_sdk.resources.entitlements import Entitlements
    from gpuaas_sdk.resources.grants import Grants, SshKeys
    from gpuaas_sdk.resources.history import History
    from gpuaas_sdk.resources.identity import Memberships, Projects, ServiceAccounts, Tenants, Users
    from gpuaas_sdk.resources.instances import BulkOperations, Instances, Members
    from gpuaas_sdk.resources.nodes import JoinTokens, Nodes
    from gpuaas_sdk.resources.operations import Deliveries, Operations
    from gpuaas_sdk.resources.preflights import Preflights
    from gpuaas_sdk.resources.quotas import Quotas
    from gpuaas_sdk.resources.reconcile import ReconcileLeases
    from gpuaas_sdk.resources.secrets import SecretDeliveries, Secrets
    from gpuaas_sdk.resources.sessions import Sessions
    from gpuaas_sdk.resources.ssh_authorities import SshAuthorities
    from gpuaas_sdk.resources.usage import Usage
    from gpuaas_sdk.resources.volumes import Volumes
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
    ) -> None:
        self._transport = Transport(
            api_url, credentials, retry=retry or RetryPolicy(), http=transport, user_agent=user_agent
        )

    @classmethod
    def from_service_account_file(cls, path: str | Path, *, api_url: str | None = None) -> "GpuaasClient":
        credentials = ServiceAccountCredentials.from_file(path)
        url = api_url or credentials.api_url
        if url is None:
            raise ValueError(f"{path} names no api_url, and none was given")
        return cls(url, credentials)

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

    @staticmethod
    def correlation(correlation_id: str | None = None) -> AbstractContextManager[str]:
        """`with client.correlation() as cor:` all calls in the block carry one correlation id."""
        return correlation(correlation_id)

    async def principal(self) -> Principal:
        """Who the platform takes us for."""
        return await self._transport.get("/principal", Principal)

    async def openapi(self) -> JsonObject:
        """The platform's description of itself, as an OpenAPI document. Needs no login."""
        response = await self._transport.send("GET", f"{self.api_url}/openapi.json", authenticated=False)
        document: JsonObject = response.json()
        return document

    async def fetch_token(self) -> Token:
        """A new token from the credentials, for callers that keep it (the CLI's login)."""
        return await self._transport.fetch_token()

    async def token(self) -> str:
        """The token in use, renewed where it is time: to hand to a process that acts for us."""
        return await self._transport.token()

    async def revoke_token(self, token: str) -> None:
        """End the login behind a refresh token or an access token; one that is over already is fine (RFC 7009)."""
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

    @cached_property
    def tenants(self) -> "Tenants":
        from gpuaas_sdk.resources.identity import Tenants

        return Tenants(self._transport)

    @cached_property
    def projects(self) -> "Projects":
        from gpuaas_sdk.resources.identity import Projects

        return Projects(self._transport)

    @cached_property
    def users(self) -> "Users":
        from gpuaas_sdk.resources.identity import Users

        return Users(self._transport)

    @cached_property
    def memberships(self) -> "Memberships":
        from gpuaas_sdk.resources.identity import Memberships

        return Memberships(self._transport)

    @cached_property
    def service_accounts(self) -> "ServiceAccounts":
        from gpuaas_sdk.resources.identity import ServiceAccounts

        return ServiceAccounts(self._transport)

    @cached_property
    def sessions(self) -> "Sessions":
        from gpuaas_sdk.resources.sessions import Sessions

        return Sessions(self._transport)

    @cached_property
    def join_tokens(self) -> "JoinTokens":
        from gpuaas_sdk.resources.nodes import JoinTokens

        return JoinTokens(self._transport)

    @cached_property
    def nodes(self) -> "Nodes":
        from gpuaas_sdk.resources.nodes import Nodes

        return Nodes(self._transport)

    @cached_property
    def allocations(self) -> "Allocations":
        from gpuaas_sdk.resources.allocations import Allocations

        return Allocations(self._transport)

    @cached_property
    def usage(self) -> "Usage":
        from gpuaas_sdk.resources.usage import Usage

        return Usage(self._transport)

    @cached_property
    def volumes(self) -> "Volumes":
        from gpuaas_sdk.resources.volumes import Volumes

        return Volumes(self._transport)

    @cached_property
    def quotas(self) -> "Quotas":
        from gpuaas_sdk.resources.quotas import Quotas

        return Quotas(self._transport)

    @cached_property
    def apps(self) -> "Apps":
        from gpuaas_sdk.resources.catalogue import Apps

        return Apps(self._transport)

    @cached_property
    def app_versions(self) -> "AppVersions":
        from gpuaas_sdk.resources.catalogue import AppVersions

        return AppVersions(self._transport)

    @cached_property
    def history(self) -> "History":
        from gpuaas_sdk.resources.history import History

        return History(self._transport)

    @cached_property
    def entitlements(self) -> "Entitlements":
        from gpuaas_sdk.resources.entitlements import Entitlements

        return Entitlements(self._transport)

    @cached_property
    def artifacts(self) -> "Artifacts":
        from gpuaas_sdk.resources.artifacts import Artifacts

        return Artifacts(self._transport)

    @cached_property
    def trusted_keys(self) -> "TrustedKeys":
        from gpuaas_sdk.resources.artifacts import TrustedKeys

        return TrustedKeys(self._transport)

    @cached_property
    def registry(self) -> "Registries":
        from gpuaas_sdk.resources.artifacts import Registries

        return Registries(self._transport)

    @cached_property
    def instances(self) -> "Instances":
        from gpuaas_sdk.resources.instances import Instances

        return Instances(self._transport)

    @cached_property
    def bulk_operations(self) -> "BulkOperations":
        from gpuaas_sdk.resources.instances import BulkOperations

        return BulkOperations(self._transport)

    @cached_property
    def members(self) -> "Members":
        from gpuaas_sdk.resources.instances import Members

        return Members(self._transport)

    @cached_property
    def operations(self) -> "Operations":
        from gpuaas_sdk.resources.operations import Operations

        return Operations(self._transport)

    @cached_property
    def reconcile_leases(self) -> "ReconcileLeases":
        """The right to look after an instance."""
        from gpuaas_sdk.resources.reconcile import ReconcileLeases

        return ReconcileLeases(self._transport)

    @cached_property
    def preflights(self) -> "Preflights":
        """What stands in the way, before anything is changed."""
        from gpuaas_sdk.resources.preflights import Preflights

        return Preflights(self._transport)

    @cached_property
    def app_usage(self) -> "AppUsage":
        """What ran in instances, as their apps report it."""
        from gpuaas_sdk.resources.app_usage import AppUsage

        return AppUsage(self._transport)

    @cached_property
    def deliveries(self) -> "Deliveries":
        from gpuaas_sdk.resources.operations import Deliveries

        return Deliveries(self._transport)

    @cached_property
    def credentials(self) -> "AccessCredentials":
        """SSH keys for machines outside of the project's SSH authority."""
        from gpuaas_sdk.resources.credentials import AccessCredentials

        return AccessCredentials(self._transport)

    @cached_property
    def secrets(self) -> "Secrets":
        from gpuaas_sdk.resources.secrets import Secrets

        return Secrets(self._transport)

    @cached_property
    def secret_deliveries(self) -> "SecretDeliveries":
        from gpuaas_sdk.resources.secrets import SecretDeliveries

        return SecretDeliveries(self._transport)

    @cached_property
    def grants(self) -> "Grants":
        from gpuaas_sdk.resources.grants import Grants

        return Grants(self._transport)

    @cached_property
    def ssh_authorities(self) -> "SshAuthorities":
        from gpuaas_sdk.resources.ssh_authorities import SshAuthorities

        return SshAuthorities(self._transport)

    @cached_property
    def ssh_keys(self) -> "SshKeys":
        """One's own SSH public keys."""
        from gpuaas_sdk.resources.grants import SshKeys

        return SshKeys(self._transport)

    @cached_property
    def audit(self) -> "Audit":
        from gpuaas_sdk.resources.audit import Audit

        return Audit(self._transport)
