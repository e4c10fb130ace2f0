"""Tokens that nobody should believe, and the real key to sign them with."""

import base64
import json
import time
from typing import Any

import httpx

from gpuaas_stack.settings import Settings
from tests.support.services import openbao_of

TOKEN_KEY = "gpuaas-tokens"


def encode(part: bytes | dict[str, Any]) -> str:
    content = json.dumps(part).encode() if isinstance(part, dict) else part
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def decode(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = token.split(".")
    return json.loads(base64.urlsafe_b64decode(header + "==")), json.loads(base64.urlsafe_b64decode(claims + "=="))


class SigningKey:
    """The platform's own key, used from behind: a token that it signed is wrong only in what it says."""

    def __init__(self, settings: Settings) -> None:
        openbao = openbao_of(settings)
        headers = {"X-Vault-Token": openbao.token_file.read_text().strip()}
        self._http = httpx.Client(base_url=f"{openbao.address}/v1/transit", headers=headers)

    def public_keys(self) -> dict[str, bytes]:
        keys = self._http.get(f"/keys/{TOKEN_KEY}").json()["data"]["keys"]
        return {version: base64.b64decode(key["public_key"]) for version, key in keys.items()}

    def sign(self, header: dict[str, Any], claims: dict[str, Any]) -> str:
        signing_input = f"{encode(header)}.{encode(claims)}"
        body = {"input": base64.b64encode(signing_input.encode()).decode(), "key_version": int(self.version(header))}
        answer = self._http.post(f"/sign/{TOKEN_KEY}", json=body).json()
        return f"{signing_input}.{encode(base64.b64decode(answer['data']['signature'].split(':')[2]))}"

    def version(self, header: dict[str, Any]) -> str:
        kid = header.get("kid")
        known = self.public_keys()
        return kid if isinstance(kid, str) and kid in known else max(known, key=int)


def aged(claims: dict[str, Any], seconds: int) -> dict[str, Any]:
    now = int(time.time())
    return {**claims, "iat": now - seconds - 3_600, "exp": now - seconds}
