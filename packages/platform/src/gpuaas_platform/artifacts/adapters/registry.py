"""The OCI registry, asked about what was pushed. Files themselves never pass through here."""

import hashlib

import httpx

from gpuaas_contract import oci
from gpuaas_contract.problems import Code
from gpuaas_platform.artifacts.rules.oci import invalid
from gpuaas_platform.core.errors import Refusal

RETRY_SECONDS = 2


class Registry:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.AsyncClient(base_url=f"{self.url}/v2/", timeout=10, follow_redirects=True)

    async def close(self) -> None:
        await self._client.aclose()

    async def read_manifest(self, token: str, repository: str, reference: str) -> bytes | None:
        """By digest, or by tag; None where there is none. One that has another digest was tampered with."""
        try:
            answer = await self._get(token, f"{repository}/manifests/{reference}", oci.LARGEST_MANIFEST)
        except Refusal as refusal:
            # Debian's registry fails on the digest of a file, as it does on anything that it cannot read.
            by_digest = refusal.code == Code.UNAVAILABLE and reference.startswith("sha256:")
            if by_digest and await self.read_size(token, repository, reference) is not None:
                raise invalid(f"{reference} is a file; name the manifest that has it as its layer") from None
            raise
        if answer is not None and reference.startswith("sha256:"):
            _require_digest(answer, reference)
        return answer

    async def read_document(self, token: str, repository: str, digest: str, limit: int) -> bytes | None:
        """A small blob, such as what a signature is about."""
        answer = await self._get(token, f"{repository}/blobs/{digest}", limit)
        if answer is not None:
            _require_digest(answer, digest)
        return answer

    async def read_size(self, token: str, repository: str, digest: str) -> int | None:
        """Of a blob; None where it is not there."""
        try:
            answer = await self._client.head(f"{repository}/blobs/{digest}", headers=_headers(token))
        except httpx.HTTPError as error:
            raise _away() from error
        return int(answer.headers.get("content-length", "-1")) if _is_there(answer) else None

    async def delete_manifest(self, token: str, repository: str, digest: str) -> None:
        """Delete a manifest, or find it gone. The bytes are freed when garbage is collected."""
        try:
            answer = await self._client.delete(f"{repository}/manifests/{digest}", headers=_headers(token))
        except httpx.HTTPError as error:
            raise _away() from error
        if answer.status_code == 405:
            raise Refusal(Code.UNAVAILABLE, "the registry takes no changes just now; try again", retry_after=10)
        _is_there(answer)

    async def _get(self, token: str, path: str, limit: int) -> bytes | None:
        try:
            async with self._client.stream("GET", path, headers=_headers(token)) as answer:
                if not _is_there(answer):
                    return None
                content = b""
                async for chunk in answer.aiter_bytes():
                    content += chunk
                    if len(content) > limit:
                        raise invalid(f"it has a document of more than {limit} bytes")
                return content
        except httpx.HTTPError as error:
            raise _away() from error


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Accept": oci.MANIFEST}


def _is_there(answer: httpx.Response) -> bool:
    if answer.status_code == 404:
        return False
    if answer.status_code == 429 or answer.status_code >= 500:
        raise _away()
    if answer.is_error:
        raise RuntimeError(f"the registry refused {answer.request.method} {answer.request.url}: {answer.status_code}")
    return True


def _away() -> Refusal:
    return Refusal(Code.UNAVAILABLE, "the registry does not answer; try again", retry_after=RETRY_SECONDS)


def _require_digest(content: bytes, digest: str) -> None:
    found = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if found != digest:
        raise Refusal(Code.DIGEST_MISMATCH, f"what the registry holds as {digest} has the digest {found}")
