"""The test platform's OpenBao, looked at from behind."""

import json
from types import TracebackType
from typing import Any, Self

import httpx

from gpuaas_stack.settings import Settings
from tests.support.services import openbao_of


class Vault:
    """With the root token: sees what the platform's own token may not, and seals."""

    def __init__(self, settings: Settings) -> None:
        openbao = openbao_of(settings)
        root = json.loads(openbao.root_file.read_text())["root_token"]
        headers = {"X-Vault-Token": root}
        self._http = httpx.Client(base_url=f"{openbao.address}/v1/", headers=headers, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def value(self, owner_id: str, version: int = 1) -> str | None:
        answer = self._http.get(f"kv/data/secrets/{owner_id}/{version}")
        return None if answer.status_code == 404 else str(answer.json()["data"]["data"]["value"])

    def knows(self, owner_id: str, version: int = 1) -> bool:
        """Whether there is anything at all, be it the trace of something deleted."""
        return self._http.get(f"kv/metadata/secrets/{owner_id}/{version}").status_code != 404

    def owners(self) -> list[str]:
        answer = self._http.request("LIST", "kv/metadata/secrets")
        return [] if answer.status_code == 404 else [key.rstrip("/") for key in answer.json()["data"]["keys"]]

    def destroy(self, owner_id: str, version: int = 1) -> None:
        self._http.delete(f"kv/metadata/secrets/{owner_id}/{version}").raise_for_status()

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._http.request(method, path, **options)
