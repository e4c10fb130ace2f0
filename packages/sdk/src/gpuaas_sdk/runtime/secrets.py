"""Secrets under one lease: each is fetched once and held in memory for as long as the lease."""

import asyncio
from collections.abc import Awaitable, Callable

from gpuaas_contract.secret_deliveries import SecretDelivery
from gpuaas_contract.secrets import SecretSpec
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import AlreadyDeliveredError
from gpuaas_sdk.runtime.errors import RetryLater
from gpuaas_sdk.secret_value import SecretValue

Deliver = Callable[[], Awaitable[SecretDelivery]]
_TRIES = 3


class LeaseSecrets:
    def __init__(self, client: GpuaasClient, operation_id: str, fencing_token: int) -> None:
        self._client = client
        self._lease = (operation_id, fencing_token)
        self._held: dict[tuple[str, int | None], SecretValue] = {}
        self._fetching = asyncio.Lock()

    async def secret(self, name: str, spec: SecretSpec | None = None, *, version: int | None = None) -> SecretValue:
        secrets = self._client.secrets

        async def deliver() -> SecretDelivery:
            found = await secrets.ensure(*self._lease, name, spec)
            return await secrets.deliver(found.id, *self._lease, version=version)

        return await self._fetch(name, version, deliver)

    async def credential(self, credential_id: str, *, version: int | None = None) -> SecretValue:
        credentials = self._client.credentials
        return await self._fetch(
            credential_id, version, lambda: credentials.deliver(credential_id, *self._lease, version=version)
        )

    async def _fetch(self, key: str, version: int | None, deliver: Deliver) -> SecretValue:
        async with self._fetching:
            if (held := self._held.get((key, version))) is None:
                held = self._held[key, version] = await self._unwrapped(key, deliver)
            return held

    async def _unwrapped(self, key: str, deliver: Deliver) -> SecretValue:
        for _ in range(_TRIES):
            try:
                delivery = await deliver()
                if delivery.wrapping_token is None:
                    # The answer to a request that was sent again comes without it; a new one makes that void.
                    continue
                return await self._client.secret_deliveries.unwrap(delivery.id, delivery.wrapping_token)
            except AlreadyDeliveredError as error:
                # Its answer was lost on the way. The next lease gets it again.
                raise RetryLater(0, f"{key} was delivered under this lease and got lost: {error.detail}") from None
        raise RetryLater(None, f"no wrapping token for {key} came through")
