"""Cursors of the change feed: a position, encrypted for one principal.

Each cursor is made anew, also for the same position: that it differs from the last one does not say that others
did something meanwhile. AES-SIV, which bears the repetition of a nonce, since there may be very many cursors. The
key lies in OpenBao and is made once: every process reads the cursors of the others, also after a restart."""

import base64
import binascii
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gpuaas_contract.problems import Code
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.kept_keys import kept_key
from gpuaas_platform.core.openbao import OpenBao

KEY_PATH = "feed/cursor-key"
KEY_BYTES = 64
NONCE_BYTES = 9
_PURPOSE = b"gpuaas change feed cursor 1"


class Cursors:
    def __init__(self, database: Database, openbao: OpenBao) -> None:
        self._database = database
        self._openbao = openbao
        self._cipher: AESSIV | None = None

    async def start(self) -> None:
        """Not at the start of the process only: it may come up while the secrets server is away."""
        if self._cipher is not None:
            return
        self._cipher = AESSIV(await kept_key(self._database, self._openbao, KEY_PATH, KEY_BYTES))

    def encode(self, position: int, principal_id: str) -> str:
        assert self._cipher is not None
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher.encrypt(position.to_bytes(8, "big"), [_PURPOSE, principal_id.encode(), nonce])
        return base64.urlsafe_b64encode(nonce + sealed).decode()

    def decode(self, cursor: str, principal_id: str) -> int:
        assert self._cipher is not None
        try:
            given = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
            nonce, sealed = given[:NONCE_BYTES], given[NONCE_BYTES:]
            plain = self._cipher.decrypt(sealed, [_PURPOSE, principal_id.encode(), nonce])
        except (ValueError, binascii.Error, UnicodeError, InvalidTag):
            raise invalid_cursor() from None
        return int.from_bytes(plain, "big")


def invalid_cursor() -> Refusal:
    detail = "the change feed did not give this cursor to you; begin without one, or with since=start"
    return Refusal(Code.CURSOR_INVALID, detail)
