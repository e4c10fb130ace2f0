"""Artifact files on disk, named by their content."""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from gpuaas_contract.problems import Code
from gpuaas_platform.domain.errors import Refusal


class BlobStore:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob("upload-*"):
            leftover.unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        return self._directory / digest.replace(":", "-")

    async def write(self, digest: str, chunks: AsyncIterator[bytes]) -> int:
        """Store a body under its digest; a body with another digest leaves nothing behind."""
        partial = self._directory / f"upload-{secrets.token_hex(8)}"
        size, hasher = 0, hashlib.sha256()
        try:
            with partial.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    hasher.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            found = f"sha256:{hasher.hexdigest()}"
            if found != digest:
                raise Refusal(Code.DIGEST_MISMATCH, f"the body has the digest {found}, not {digest}")
            partial.replace(self.path(digest))
        finally:
            partial.unlink(missing_ok=True)
        return size
