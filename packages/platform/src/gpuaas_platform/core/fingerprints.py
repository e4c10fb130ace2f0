"""Fingerprints of requests, for idempotency keys and the audit trail: whether two requests are the same.

A request may hold a password. Whoever reads the database could try passwords against a plain hash of it; against
one with a key that lies in OpenBao they cannot."""

import hashlib
import hmac

from gpuaas_platform.core.database import Database
from gpuaas_platform.core.kept_keys import kept_key
from gpuaas_platform.core.openbao import OpenBao

KEY_PATH = "requests/fingerprint-key"
KEY_BYTES = 32


class Fingerprints:
    def __init__(self, database: Database, openbao: OpenBao) -> None:
        self._database = database
        self._openbao = openbao
        self._key: bytes | None = None

    async def start(self) -> None:
        if self._key is None:
            self._key = await kept_key(self._database, self._openbao, KEY_PATH, KEY_BYTES)

    def of(self, method: str, target: str, body: bytes) -> str:
        """Call it after `start` only."""
        assert self._key is not None
        return hmac.new(self._key, f"{method} {target}\n".encode() + body, hashlib.sha256).hexdigest()
