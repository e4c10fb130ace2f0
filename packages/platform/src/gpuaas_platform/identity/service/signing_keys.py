"""The key that signs tokens: it lives in OpenBao and rotates; every process knows its public halves."""

import asyncio
import base64
import time
from datetime import UTC, datetime

from joserfc.jwk import OKPKey

from gpuaas_contract.oauth import JsonWebKey, JsonWebKeySet
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.openbao import KeyVersion, OpenBao
from gpuaas_platform.core.wakeups import TOKEN_KEYS
from gpuaas_platform.identity.rules.signing_keys import believed_until, in_order, is_due, signing_version

RELOAD_SECONDS = 5
"""Tokens that name unknown keys cost OpenBao one question in this time, however many there are."""


def encode(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


class SigningKeys:
    def __init__(self, openbao: OpenBao, database: Database, most_days: float) -> None:
        self._openbao = openbao
        self._database = database
        self._most_days = most_days
        self._versions: list[KeyVersion] = []
        self._keys: dict[str, OKPKey] = {}
        self._ends: dict[str, datetime | None] = {}
        self._reloading = asyncio.Lock()
        self._reloaded_at = float("-inf")

    async def start(self) -> None:
        await self._openbao.ensure_token_key()
        await self.reload()

    async def reload(self) -> None:
        versions = in_order(await self._openbao.token_key_versions())
        self._ends = believed_until(versions)
        self._keys = {
            key.version: OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key)})
            for key in versions
        }
        self._versions = versions

    async def find(self, kid: str) -> OKPKey | None:
        """None for a version that never was, or whose last token must have expired."""
        if kid not in self._keys:
            await self._reload_for_unknown()
        end = self._ends.get(kid)
        if end is not None and end < datetime.now(UTC):
            return None
        return self._keys.get(kid)

    async def _reload_for_unknown(self) -> None:
        """Another process may have rotated the key a moment ago; or somebody makes names up."""
        async with self._reloading:
            if time.monotonic() - self._reloaded_at >= RELOAD_SECONDS:
                self._reloaded_at = time.monotonic()
                await self.reload()

    def signing_version(self) -> str:
        return signing_version(self._versions, datetime.now(UTC)).version

    async def sign(self, signing_input: bytes, version: str) -> bytes:
        return await self._openbao.sign_token(signing_input, version)

    def public_keys(self) -> JsonWebKeySet:
        now = datetime.now(UTC)
        believed = [key for key in self._versions if (end := self._ends[key.version]) is None or end >= now]
        return JsonWebKeySet(keys=[JsonWebKey(kid=key.version, x=encode(key.public_key)) for key in believed])

    async def rotate_if_due(self) -> bool:
        if not is_due(await self._openbao.token_key_versions(), datetime.now(UTC), self._most_days):
            return False
        async with self._database.exclusively("token key"):
            # Another process may have been faster.
            if not is_due(await self._openbao.token_key_versions(), datetime.now(UTC), self._most_days):
                return False
            await self._openbao.rotate_token_key()
        await self.reload()
        async with self._database.system_transaction() as tx:
            await tx.audit("token_key.rotate", f"token_key/{self._versions[-1].version}")
            await tx.notify(TOKEN_KEYS)
        return True
