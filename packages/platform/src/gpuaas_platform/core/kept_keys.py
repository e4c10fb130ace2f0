"""Keys of this platform's own that lie in OpenBao: made once, and the same in every process, also after a restart."""

import base64
import hashlib
import hmac
import secrets

from gpuaas_platform.core.database import Database
from gpuaas_platform.core.openbao import OpenBao

KEY_PATH = "requests/fingerprint-key"
KEY_BYTES = 32


async def kept_key(database: Database, openbao: OpenBao, path: str, size: int) -> bytes:
    document = await openbao.read_document(path)
    if document is None:
        async with database.exclusively(path):
            document = await openbao.read_document(path)
            if document is None:
                document = {"key": base64.b64encode(secrets.token_bytes(size)).decode()}
                await openbao.write_document(path, document)
    return base64.b64decode(document["key"])


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

    def of_text(self, text: str) -> str:
        """Of what somebody typed: the same for the same text, and nobody gets the text back without the key."""
        return self.of("TEXT", "", text.encode())
