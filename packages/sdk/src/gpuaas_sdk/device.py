"""Log a command line in through a browser (RFC 8628)."""

import asyncio
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from gpuaas_contract.identity import Token
from gpuaas_contract.oauth import DeviceAuthorization
from gpuaas_sdk.credentials import StaticToken
from gpuaas_sdk.errors import AuthorizationPendingError, SlowDownError, TransportError, UnavailableError
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.transport import Transport, parse

SLOWER_BY = 5


class DeviceLogin:
    """`async with DeviceLogin(url, "my program") as login:` start, show the code, wait for the token."""

    def __init__(
        self,
        api_url: str,
        client_id: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        self._client_id = client_id
        self._transport = Transport(api_url, StaticToken(""), retry=RetryPolicy(), http=transport, ca_file=ca_file)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def start(self) -> DeviceAuthorization:
        form = {"client_id": self._client_id}
        response = await self._transport.send("POST", "/oauth/device_authorization", form=form, authenticated=False)
        return parse(DeviceAuthorization, response)

    async def wait(self, authorization: DeviceAuthorization) -> Token:
        """Wait until somebody approves; raise AccessDeniedError or UnauthenticatedError (expired) otherwise."""
        interval = authorization.interval
        deadline = time.monotonic() + authorization.expires_in + SLOWER_BY
        while True:
            try:
                return await self._transport.exchange_device_code(self._client_id, authorization.device_code)
            except SlowDownError:
                interval += SLOWER_BY
            except AuthorizationPendingError:
                pass
            except (TransportError, UnavailableError):
                # The platform itself says when the code has expired; a silent one must not keep us for ever.
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(interval)
