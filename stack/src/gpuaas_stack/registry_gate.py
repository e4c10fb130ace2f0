"""The way to the registry: each request is let through only where the right behind its token still stands.

The registry itself believes a token for as long as it is valid. Here, the platform that signed it is asked first, and
asked again each second while something is sent. A token whose right was withdrawn is left out of the request, so that
the registry answers as it does to who shows none. One request for each connection: what follows it is never read."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import ssl
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ASK_SECONDS = 0.5
"""An answer of the platform counts for so long."""
WATCH_SECONDS = 1.0
"""How often it is asked while something is being sent."""
ANSWER_SECONDS = 5.0
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 10.0
"""Longer than the registry takes to start anew."""
MOST_HEAD = 64 << 10
PIECE = 1 << 18
MOST_ANSWERS = 10_000
_REQUEST = re.compile(rb"[A-Z]{1,20} /[\x21-\x7e]* HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\x00]*)")
_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"upgrade"}


class RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Head:
    """A request up to its body, as the registry gets it, and the token that it shows."""

    sent: bytes
    token: str | None
    without_token: bytes


def read_head(text: bytes) -> Head:
    """Refuse whatever two readers could read differently: what the gate sees is what the registry sees."""
    line, *rest = text.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if not _REQUEST.fullmatch(line):
        raise RefusedError(400, "UNSUPPORTED", "this is not a request of HTTP/1.1")
    kept, shown = [line], list[bytes]()
    # The registry answers one request and hangs up.
    end = [b"Connection: close", b"", b""]
    for one in rest:
        found = _HEADER.fullmatch(one)
        if found is None:
            raise RefusedError(400, "UNSUPPORTED", "a header of the request cannot be read")
        name = found[1].lower()
        if name == b"authorization":
            shown.append(one)
        elif name not in _HOP:
            kept.append(one)
    if len(shown) > 1:
        raise RefusedError(400, "UNSUPPORTED", "the request has more than one Authorization header")
    words = shown[0].partition(b":")[2].strip().split(b" ") if shown else []
    is_bearer = len(words) == 2 and words[0].lower() == b"bearer"
    token = words[1].decode("latin-1") if is_bearer else None
    return Head(b"\r\n".join([*kept, *shown, *end]), token, b"\r\n".join([*kept, *end]))


class Keys:
    """The public keys by which the registry believes tokens, each by the name that the registry gives it."""

    def __init__(self, bundle: bytes) -> None:
        self._keys: dict[str, ec.EllipticCurvePublicKey] = {}
        for certificate in x509.load_pem_x509_certificates(bundle):
            key = certificate.public_key()
            if isinstance(key, ec.EllipticCurvePublicKey):
                self._keys[_name_of(key)] = key

    def read(self, token: str) -> dict[str, Any] | None:
        """The claims, where one of the keys signed them."""
        try:
            signed, _, signature = token.rpartition(".")
            header, claims = (json.loads(_decode(part)) for part in signed.split("."))
            raw = _decode(signature)
            key = self._keys.get(header["kid"])
            if key is None or header["alg"] != "ES256" or len(raw) != 64:
                return None
            pair = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
            key.verify(pair, signed.encode(), ec.ECDSA(hashes.SHA256()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidSignature):
            return None
        return claims if isinstance(claims, dict) else None


def _name_of(key: ec.EllipticCurvePublicKey) -> str:
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    text = base64.b32encode(hashlib.sha256(der).digest()[:30]).decode().rstrip("=")
    return ":".join(text[at : at + 4] for at in range(0, len(text), 4))


def _decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


class Rights:
    """Whether tokens are still good, as the platform says; asked once a second for each, however many show it."""

    def __init__(self, keys: Keys, ca_file: Path | None) -> None:
        self._keys = keys
        self._http = httpx.AsyncClient(
            timeout=ANSWER_SECONDS, verify=ssl.create_default_context(cafile=ca_file), trust_env=False
        )
        self._asked: dict[str, tuple[float, asyncio.Task[bool]]] = {}

    async def stands(self, token: str) -> bool:
        """False where the right was withdrawn. Raises RefusedError where nobody can say."""
        claims = self._keys.read(token)
        if claims is None:
            # Not the platform's: the registry never sees what nobody was asked about.
            return False
        if not isinstance(claims.get("check"), str):
            # The platform uses it itself.
            return True
        try:
            return await self._ask(token, claims["check"])
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RefusedError(
                503, "UNAVAILABLE", "the platform cannot be asked about this token; try again"
            ) from error

    async def until_withdrawn(self, token: str) -> None:
        """Return when what is being sent with this token must end. While the platform does not answer, that is when
        the token itself does."""
        claims = self._keys.read(token)
        expires = claims.get("exp", 0) if claims is not None else 0
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                if not await self.stands(token):
                    return
            except RefusedError:
                if time.time() > expires:
                    return

    async def _ask(self, token: str, url: str) -> bool:
        digest = hashlib.sha256(token.encode()).hexdigest()
        now = time.monotonic()
        known = self._asked.get(digest)
        if known is None or now - known[0] > ASK_SECONDS:
            if len(self._asked) >= MOST_ANSWERS:
                self._asked = {key: one for key, one in self._asked.items() if now - one[0] <= ASK_SECONDS}
            known = (now, asyncio.create_task(self._fetch(token, url)))
            self._asked[digest] = known
        return await asyncio.shield(known[1])

    async def _fetch(self, token: str, url: str) -> bool:
        answer = await self._http.get(url, headers={"Authorization": f"Bearer {token}"})
        try:
            return bool(answer.raise_for_status().json()["active"])
        except (ValueError, KeyError, TypeError) as error:
            raise httpx.DecodingError("no answer to the question", request=answer.request) from error

    async def aclose(self) -> None:
        await self._http.aclose()


class Gate:
    def __init__(self, socket: Path, rights: Rights) -> None:
        self._socket = socket
        self._rights = rights

    async def serve(self, port: int) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=PIECE, backlog=1024)
        try:
            await server.serve_forever()
        finally:
            await self._rights.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._pass_one(reader, writer)
        except RefusedError as refused:
            await _answer(writer, refused)
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            writer.close()

    async def _pass_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = read_head(await asyncio.wait_for(_read_head(reader), HEAD_SECONDS))
        good = head.token is None or await self._rights.stands(head.token)
        from_registry, to_registry = await self._connect()
        try:
            to_registry.write(head.sent if good else head.without_token)
            await self._carry(head.token if good else None, (reader, to_registry), (from_registry, writer))
        finally:
            to_registry.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                return await asyncio.open_unix_connection(str(self._socket), limit=PIECE)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RefusedError(503, "UNAVAILABLE", "the registry is being started; try again") from error
                await asyncio.sleep(0.05)

    async def _carry(self, token: str | None, there: _Way, back: _Way) -> None:
        """Until the registry has answered and hung up, the client is gone, or the right is."""
        sending = asyncio.create_task(_pump(*there))
        answering = asyncio.create_task(_pump(*back))
        watching = None if token is None else asyncio.create_task(self._rights.until_withdrawn(token))
        ends = {answering} if watching is None else {answering, watching}
        try:
            await asyncio.wait({*ends, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not any(task.done() for task in ends):
                # The request is whole, or the client gone: the answer tells.
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if watching is not None and watching.done():
                for _, writer in (there, back):
                    writer.transport.abort()
        finally:
            tasks: list[Awaitable[None]] = []
            for task in (sending, answering, watching):
                if task is not None:
                    task.cancel()
                    tasks.append(task)
            await asyncio.gather(*tasks, return_exceptions=True)


_Way = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        text = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise RefusedError(431, "UNSUPPORTED", "the headers of the request are too long") from error
    if len(text) > MOST_HEAD:
        raise RefusedError(431, "UNSUPPORTED", "the headers of the request are too long")
    return text


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


async def _answer(writer: asyncio.StreamWriter, refused: RefusedError) -> None:
    body = json.dumps({"errors": [{"code": refused.code, "message": str(refused)}]}).encode()
    later = "Retry-After: 1\r\n" if refused.status == 503 else ""
    head = (
        f"HTTP/1.1 {refused.status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{later}Connection: close\r\n\r\n"
    )
    with suppress(OSError):
        writer.write(head.encode() + body)
        await writer.drain()
