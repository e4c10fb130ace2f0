"""Uploads that were cut: Debian's registry throws one away when it is asked to go on from anywhere but its last byte,
and tells nobody which that is. Who can read its files and knows its secret can."""

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path

from gpuaas_contract.artifacts import RegistryUpload

STILL_SECONDS = 0.2
MOST_LOOKS = 25


class Uploads:
    def __init__(self, url: str, data: Path | None, secret_file: Path | None) -> None:
        self._url = url.rstrip("/")
        self._data = data
        self._secret_file = secret_file

    async def find(self, repository: str, upload_id: str) -> RegistryUpload | None:
        """None where there is none, nobody knows, or somebody else is still sending."""
        if self._data is None or self._secret_file is None:
            return None
        directory = self._data / "docker/registry/v2/repositories" / repository / "_uploads" / upload_id
        size = await self._final_size(directory / "data")
        if size is None:
            return None
        state = {"Name": repository, "UUID": upload_id, "Offset": size}
        try:
            state["StartedAt"] = (directory / "startedat").read_text()
            secret = self._secret_file.read_text().strip()
        except OSError:
            return None
        message = json.dumps(state, separators=(",", ":")).encode()
        signed = base64.urlsafe_b64encode(hmac.digest(secret.encode(), message, hashlib.sha256) + message).decode()
        location = f"{self._url}/v2/{repository}/blobs/uploads/{upload_id}?_state={signed}"
        return RegistryUpload(location=location, offset=size)

    @staticmethod
    async def _final_size(file: Path) -> int | None:
        """The registry may still be writing what had arrived when the connection broke."""
        seen = -1
        for _ in range(MOST_LOOKS):
            try:
                size = file.stat().st_size  # noqa: ASYNC240 - local disk
            except OSError:
                return None
            if size == seen:
                return size
            seen = size
            await asyncio.sleep(STILL_SECONDS)
        return None
