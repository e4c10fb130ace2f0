"""Pushing to an OCI registry: blobs in chunks that go on where they were interrupted, then the manifest. And reading
from it."""

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from gpuaas_contract import oci
from gpuaas_contract.backoff import Backoff
from gpuaas_sdk.errors import GpuaasError, TransportError
from gpuaas_sdk.transport import trusted

CHUNK = 16 << 20
_PIECE = 1 << 17
ATTEMPTS = 6
"""In a row without getting on."""
AGAIN = Backoff(first_delay=0.4, longest_delay=5.0)
Progress = Callable[[int], None]
FindUpload = Callable[[str], Awaitable[tuple[str, int] | None]]
"""Where an upload of this id goes on, as somebody knows who sees more than the registry tells."""


async def _nobody_knows(upload_id: str) -> tuple[str, int] | None:
    return None


class RegistryError(GpuaasError):
    """The registry refused, and said why."""


class RegistryFailedError(TransportError):
    """The registry could not do it, and will not be able to go on with it either: a full disk, most likely."""


class UploadLostError(GpuaasError):
    """The registry does not know this upload any more, or not as far as we do."""


class UploadNotes:
    """Where uploads were, each in a file: so that another call of a program can go on with it."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    @contextmanager
    def of(self, repository: str, digest: str) -> "Iterator[UploadNote]":
        """Held by one program at a time: another that sends the same file meanwhile makes an upload of its own."""
        if self._directory is None:
            yield UploadNote(None)
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = hashlib.sha256(f"{repository} {digest}".encode()).hexdigest()
        path = self._directory / f"{name}.json"
        with path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield UploadNote(None)
                return
            yield UploadNote(path)
            if not path.exists():
                Path(lock.name).unlink(missing_ok=True)


class UploadNote:
    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.location: str | None = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            self.location = None if path is None else str(json.loads(path.read_text())["location"])

    def write(self, location: str) -> None:
        self.location = location
        if self._path is not None:
            self._path.write_text(json.dumps({"location": location}))

    def forget(self) -> None:
        self.location = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class RegistryClient:
    """One repository of a registry. `fetch_token` gives a token that is good for some minutes."""

    def __init__(
        self,
        url: str,
        repository: str,
        fetch_token: Callable[[], Awaitable[str]],
        *,
        find_upload: FindUpload = _nobody_knows,
        notes: UploadNotes | None = None,
        chunk: int = CHUNK,
        ca_file: str | Path | None = None,
    ) -> None:
        self._url = f"{url.rstrip('/')}/v2/{repository}/"
        self._repository = repository
        self._fetch_token = fetch_token
        self._find_upload = find_upload
        self._notes = notes or UploadNotes(None)
        self._chunk = chunk
        self._token: str | None = None
        verify = trusted(url, ca_file)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(30, read=120, write=120), verify=verify)

    async def __aenter__(self) -> "RegistryClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def _send(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        content: Callable[[], AsyncIterator[bytes]] | bytes | None = None,
        accept: tuple[int, ...] = (),
        stream: bool = False,
    ) -> httpx.Response:
        """`stream`: the content of a good answer is left to the caller to read, and the answer to be closed."""
        for renewed in (False, True):
            if self._token is None or renewed:
                self._token = await self._fetch_token()
            sent = {"Authorization": f"Bearer {self._token}", **(headers or {})}
            body = content() if callable(content) else content
            try:
                request = self._http.build_request(method, urljoin(self._url, url), headers=sent, content=body)
                answer = await self._http.send(request, stream=stream)
                if not answer.is_success:
                    await answer.aread()
            except httpx.TransportError as error:
                raise _unreachable(error) from error
            if answer.status_code != 401:
                break
        if answer.status_code == 401:
            raise RegistryError(f"you may not {method} in {self._repository}")
        if answer.status_code == 405:
            raise TransportError(
                "the registry is read-only: garbage is collected, or its disk is nearly full; try again later"
            )
        if answer.status_code == 500:
            raise RegistryFailedError(f"the registry failed: {_reason(answer)}")
        if answer.status_code == 429 or answer.status_code >= 500:
            raise TransportError(f"the registry is not ready: {_reason(answer)}")
        if answer.is_error and answer.status_code not in accept:
            raise RegistryError(f"the registry refused {method} in {self._repository}: {_reason(answer)}")
        return answer

    async def has_blob(self, digest: str) -> bool:
        return (await self._send("HEAD", f"blobs/{digest}", accept=(404,))).status_code == 200

    async def push_bytes(self, content: bytes) -> str:
        digest = digest_of(content)
        if not await self.has_blob(digest):
            started = await self._send("POST", "blobs/uploads/", headers={"Content-Length": "0"})
            url = str(httpx.URL(self._absolute(started)).copy_merge_params({"digest": digest}))
            await self._send("PUT", url, headers={"Content-Type": oci.FILE}, content=content)
        return digest

    async def push_file(self, path: Path, digest: str, on_progress: Progress = lambda sent: None) -> None:
        """Send only what the registry lacks: nothing, the rest of an interrupted upload, or all of it."""
        size = path.stat().st_size  # noqa: ASYNC240 - local disk
        if await self.has_blob(digest):
            on_progress(size)
            return
        with self._notes.of(self._repository, digest) as note:
            await self._push(path, size, digest, note, on_progress)

    async def _push(self, path: Path, size: int, digest: str, note: UploadNote, on_progress: Progress) -> None:
        failures, reached = 0, 0
        while True:
            try:
                location, offset = await self._begin(note)
                on_progress(offset)
                if offset > reached:
                    # It gets on, if slowly: only standing still counts.
                    failures, reached = 0, offset
                # After a failure a small piece first: who refuses a large one may hang up before the reason is read.
                first = min(self._chunk, _PIECE) if failures else self._chunk
                await self._upload(path, size, digest, note, location, offset, first, on_progress)
                return
            except UploadLostError:
                note.forget()
                failures += 1
                if failures >= ATTEMPTS:
                    raise
            except TransportError as error:
                failures += 1
                if isinstance(error, RegistryFailedError):
                    note.forget()
                if failures >= ATTEMPTS:
                    raise
                await asyncio.sleep(AGAIN.delay(failures))

    async def _upload(
        self,
        path: Path,
        size: int,
        digest: str,
        note: UploadNote,
        location: str,
        offset: int,
        length: int,
        on_progress: Progress,
    ) -> None:
        while offset < size:
            length = min(length, size - offset)
            headers = {
                "Content-Type": oci.FILE,
                "Content-Length": str(length),
                "Content-Range": f"{offset}-{offset + length - 1}",
            }
            content = _part(path, offset, length, on_progress)
            answer = await self._send("PATCH", location, headers=headers, content=content, accept=(404, 416))
            if answer.status_code in {404, 416} or _last(answer) != offset + length - 1:
                raise UploadLostError("the registry lost the upload; it starts over")
            location, offset = self._absolute(answer), offset + length
            note.write(location)
            on_progress(offset)
            length = self._chunk
        url = str(httpx.URL(location).copy_merge_params({"digest": digest}))
        answer = await self._send("PUT", url, headers={"Content-Length": "0"}, accept=(404,))
        if answer.status_code == 404:
            raise UploadLostError("the registry lost the upload; it starts over")
        note.forget()

    async def _begin(self, note: UploadNote) -> tuple[str, int]:
        """Where an earlier attempt was: as the platform knows, or the registry itself; else a new upload."""
        if note.location is not None:
            if (found := await self._find_upload(_upload_id(note.location))) is not None:
                note.write(found[0])
                return found
            answer = await self._send("GET", note.location, accept=(400, 404))
            if answer.is_success:
                return self._absolute(answer) if "location" in answer.headers else note.location, _offset(answer)
        answer = await self._send("POST", "blobs/uploads/", headers={"Content-Length": "0"})
        location = self._absolute(answer)
        note.write(location)
        return location, 0

    def _absolute(self, answer: httpx.Response) -> str:
        return urljoin(self._url, answer.headers["location"])

    async def blob_size(self, digest: str) -> int:
        return int((await self._send("HEAD", f"blobs/{digest}")).headers["content-length"])

    async def read_blob(self, digest: str, size: int) -> AsyncGenerator[bytes]:
        """In pieces. The last one only where all of them have size and digest: who waits for the whole length never
        takes anything else for it."""
        answer = await self._send("GET", f"blobs/{digest}", stream=True)
        seen, length, last = hashlib.sha256(), 0, b""
        try:
            async for piece in answer.aiter_bytes(_PIECE):
                seen.update(piece)
                length += len(piece)
                if length > size:
                    break
                if last:
                    yield last
                last = piece
        except httpx.TransportError as error:
            raise _unreachable(error) from error
        finally:
            await answer.aclose()
        if (length, f"sha256:{seen.hexdigest()}") != (size, digest):
            raise RegistryError(f"the registry has other content as {digest} in {self._repository}")
        yield last

    async def read_manifest(self, reference: str) -> bytes | None:
        answer = await self._send("GET", f"manifests/{reference}", headers={"Accept": oci.MANIFEST}, accept=(404,))
        return answer.content if answer.is_success else None

    async def push_manifest(self, content: bytes, reference: str | None = None) -> str:
        """By its digest, or under a tag."""
        digest = digest_of(content)
        await self._send(
            "PUT", f"manifests/{reference or digest}", headers={"Content-Type": oci.MANIFEST}, content=content
        )
        return digest


def _part(path: Path, start: int, length: int, on_progress: Progress) -> Callable[[], AsyncIterator[bytes]]:
    async def read() -> AsyncIterator[bytes]:
        with path.open("rb") as file:
            file.seek(start)
            left = length
            while left and (piece := file.read(min(_PIECE, left))):
                yield piece
                left -= len(piece)
                on_progress(start + length - left)

    return read


def _unreachable(error: httpx.TransportError) -> TransportError:
    return TransportError(f"cannot reach the registry: {str(error) or type(error).__name__}")


def _upload_id(location: str) -> str:
    return urlsplit(location).path.rpartition("/")[2]


def _offset(answer: httpx.Response) -> int:
    """How much of an upload the registry has. One that has nothing yet says 0-0, like one that has a byte: nobody
    sends a single byte and then more."""
    last = _last(answer)
    return last + 1 if last > 0 else 0


def _last(answer: httpx.Response) -> int:
    """The end of a range, which counts from zero."""
    found = answer.headers.get("range", "").rpartition("-")[2]
    return int(found) if found.isdigit() else -1


def _reason(answer: httpx.Response) -> str:
    try:
        errors = [_words(error) for error in answer.json()["errors"]]
        return f"{answer.status_code} {'; '.join(errors)}".strip()
    except (ValueError, KeyError, TypeError):
        return str(answer.status_code)


def _words(error: dict[str, Any]) -> str:
    """A full disk, for one, is said in the detail alone, and by its number."""
    detail = error.get("detail")
    while isinstance(detail, dict):
        detail = detail.get("Enclosed") or detail.get("Err") or detail.get("Reason")
    if isinstance(detail, int):
        detail = os.strerror(detail)
    return f"{error['message']} ({str(detail)[:300]})" if detail else str(error["message"])


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
