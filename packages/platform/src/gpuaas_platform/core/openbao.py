"""OpenBao (or Vault): the token signing key and the SSH authorities never leave it."""

import base64
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal

TOKEN_KEY = "gpuaas-tokens"  # noqa: S105 - the name of a key
REGISTRY_KEY = "gpuaas-registry"
RECEIPT_KEY = "gpuaas-receipts"


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """One version of a signing key."""

    version: str
    created_at: datetime
    public_key: bytes


_SSH_ROLES: dict[str, dict[str, Any]] = {
    "user": {
        "allow_user_certificates": True,
        "allowed_users": "*",
        "allowed_extensions": "permit-pty,permit-port-forwarding",
        "default_extensions": {"permit-pty": "", "permit-port-forwarding": ""},
        "allow_user_key_ids": True,
        "max_ttl": "1h",
    },
    "host": {
        "allow_host_certificates": True,
        "allowed_domains": "*",
        "allow_bare_domains": True,
        "allow_user_key_ids": True,
        "max_ttl": "720h",
    },
}


def _mount(owner_id: str, version: int) -> str:
    """Each version of an authority has an engine of its own, which is removed with its key."""
    return f"ssh/{owner_id}" if version == 1 else f"ssh/{owner_id}-{version}"


class OpenBao:
    def __init__(self, address: str, token_file: Path) -> None:
        self._client = httpx.AsyncClient(
            base_url=f"{address.rstrip('/')}/v1/",
            headers={"X-Vault-Token": token_file.read_text().strip()},
            timeout=10,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def is_healthy(self) -> bool:
        try:
            return (await self._client.get("sys/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        accept: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Nothing, for what is not there to be read or for a refusal with the words that the caller accepts."""
        try:
            response = await self._client.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise Refusal(Code.UNAVAILABLE, "the secrets server does not answer", retry_after=2) from error
        if response.status_code in {429, 500, 502, 503}:
            raise Refusal(Code.UNAVAILABLE, "the secrets server is not ready", retry_after=2)
        if (response.status_code == 404 and method == "GET") or (accept is not None and accept in response.text):
            return {}
        if response.is_error:
            raise RuntimeError(f"OpenBao refused {method} {path}: {response.status_code} {response.text[:300]}")
        return dict(response.json()) if response.content else {}

    async def renew_token(self) -> None:
        """Our own token ends unless it is renewed within its period. One that never ends is not renewed."""
        await self._call("POST", "auth/token/renew-self", {}, accept="not renewable")

    # Token signing

    async def ensure_token_key(self) -> None:
        if not await self._call("GET", f"transit/keys/{TOKEN_KEY}"):
            await self._call("POST", f"transit/keys/{TOKEN_KEY}", {"type": "ed25519"})

    async def token_public_keys(self) -> dict[str, bytes]:
        """Raw ed25519 public keys by version: all that are still accepted."""
        answer = await self._call("GET", f"transit/keys/{TOKEN_KEY}")
        return {version: base64.b64decode(key["public_key"]) for version, key in answer["data"]["keys"].items()}

    async def token_key_versions(self) -> list[KeyVersion]:
        return await self._versions_of(TOKEN_KEY)

    async def _versions_of(self, name: str) -> list[KeyVersion]:
        answer = await self._call("GET", f"transit/keys/{name}")
        return [
            KeyVersion(version, datetime.fromisoformat(key["creation_time"]), base64.b64decode(key["public_key"]))
            for version, key in answer["data"]["keys"].items()
        ]

    async def rotate_token_key(self) -> None:
        """Old versions stay there: what they signed, audit checkpoints too, can still be verified."""
        await self._call("POST", f"transit/keys/{TOKEN_KEY}/rotate", {})

    async def sign_token(self, signing_input: bytes, version: str) -> bytes:
        answer = await self._call(
            "POST",
            f"transit/sign/{TOKEN_KEY}",
            {"input": base64.b64encode(signing_input).decode(), "key_version": int(version)},
        )
        return base64.b64decode(answer["data"]["signature"].split(":", 2)[2])

    async def sign(self, message: bytes) -> tuple[str, bytes]:
        """Sign with the newest version of the platform's key; returns that version and the signature."""
        body = {"input": base64.b64encode(message).decode()}
        answer = await self._call("POST", f"transit/sign/{TOKEN_KEY}", body)
        _, version, signature = answer["data"]["signature"].split(":", 2)
        return version.removeprefix("v"), base64.b64decode(signature)

    # Teardown receipts: a key of their own, whose versions all stay

    async def ensure_receipt_key(self) -> None:
        if not await self._call("GET", f"transit/keys/{RECEIPT_KEY}"):
            await self._call("POST", f"transit/keys/{RECEIPT_KEY}", {"type": "ed25519"})

    async def receipt_key_versions(self) -> list[KeyVersion]:
        return await self._versions_of(RECEIPT_KEY)

    async def rotate_receipt_key(self) -> None:
        await self._call("POST", f"transit/keys/{RECEIPT_KEY}/rotate", {})

    async def sign_receipt(self, message: bytes, version: str) -> bytes:
        body = {"input": base64.b64encode(message).decode(), "key_version": int(version)}
        answer = await self._call("POST", f"transit/sign/{RECEIPT_KEY}", body)
        return base64.b64decode(answer["data"]["signature"].split(":", 2)[2])

    # Tokens for the registry, which knows no ed25519

    async def ensure_registry_key(self) -> None:
        if not await self._call("GET", f"transit/keys/{REGISTRY_KEY}"):
            await self._call("POST", f"transit/keys/{REGISTRY_KEY}", {"type": "ecdsa-p256"})

    async def registry_keys(self) -> dict[str, str]:
        """Public keys in PEM form, by version."""
        answer = await self._call("GET", f"transit/keys/{REGISTRY_KEY}")
        return {version: str(key["public_key"]) for version, key in answer["data"]["keys"].items()}

    async def sign_registry_token(self, signing_input: bytes, version: str) -> str:
        """In the form that a token ends with."""
        body = {"input": base64.b64encode(signing_input).decode(), "key_version": int(version)}
        body |= {"marshaling_algorithm": "jws", "hash_algorithm": "sha2-256"}
        answer = await self._call("POST", f"transit/sign/{REGISTRY_KEY}", body)
        return str(answer["data"]["signature"].split(":", 2)[2])

    # Documents that must not lie in the database that they speak about

    async def write_document(self, path: str, document: dict[str, Any]) -> None:
        await self._call("POST", f"kv/data/{path}", {"data": document})

    async def read_document(self, path: str) -> dict[str, Any] | None:
        answer = await self._call("GET", f"kv/data/{path}")
        return dict(answer["data"]["data"]) if answer else None

    # Secrets: each value at a path of its own, written once, and never read here but through a wrapping token

    async def keep_secret(self, path: str, document: dict[str, Any]) -> None:
        await self._call("POST", f"kv/data/{path}", {"options": {"cas": 0}, "data": document})

    async def wrap_secret(self, path: str, seconds: int) -> str | None:
        """A token that unwraps the value once; the value itself stays there. None where there is none."""
        answer = await self._call("GET", f"kv/data/{path}", headers={"X-Vault-Wrap-TTL": f"{seconds}s"})
        return str(answer["wrap_info"]["token"]) if answer else None

    async def unwrap_secret(self, token: str) -> dict[str, Any] | None:
        """None where the token was used, has expired or never was one."""
        answer = await self._call("POST", "sys/wrapping/unwrap", {"token": token}, accept="wrapping token is not valid")
        return dict(answer["data"]["data"]) if answer else None

    async def destroy_secret(self, path: str) -> None:
        """The value and all that is known of it; nothing there is fine."""
        await self._call("DELETE", f"kv/metadata/{path}")

    # SSH authorities: one engine per owner of machines

    async def ensure_authority(self, owner_id: str, version: int = 1) -> str:
        """Return the public key of the authority of a project or tenant, which is made on first use.

        The key comes last, so that where there is a key there is all of it. Only one caller at a time may do
        this for an owner: OpenBao would make a second key and sign with that one from then on."""
        mount = _mount(owner_id, version)
        if (public_key := await self._authority_key(mount)) is None:
            await self._call("POST", f"sys/mounts/{mount}", {"type": "ssh"}, accept="path is already in use")
            for role, configuration in _SSH_ROLES.items():
                await self._call("POST", f"{mount}/roles/{role}", {"key_type": "ca", **configuration})
            body = {"generate_signing_key": True, "key_type": "ed25519"}
            await self._call("POST", f"{mount}/config/ca", body)
            public_key = await self._authority_key(mount)
        if public_key is None:
            raise RuntimeError(f"OpenBao has no authority at {mount} after it was made")
        return public_key

    async def destroy_authority(self, owner_id: str, version: int) -> None:
        """With its key. Nothing there is fine."""
        await self._call("DELETE", f"sys/mounts/{_mount(owner_id, version)}")

    async def _authority_key(self, mount: str) -> str | None:
        """None where the engine is not there, or has no key yet."""
        answer = await self._call("GET", f"{mount}/config/ca", accept="no default issuer")
        return str(answer["data"]["public_key"]).strip() if answer else None

    async def sign_user_key(
        self, owner_id: str, version: int, public_key: str, principals: list[str], seconds: int, key_id: str
    ) -> str:
        return await self._sign(_mount(owner_id, version), "user", public_key, principals, f"{seconds}s", key_id)

    async def sign_host_key(self, owner_id: str, version: int, public_key: str, principal: str, seconds: int) -> str:
        return await self._sign(_mount(owner_id, version), "host", public_key, [principal], f"{seconds}s", principal)

    async def _sign(self, mount: str, role: str, public_key: str, principals: list[str], ttl: str, key_id: str) -> str:
        answer = await self._call(
            "POST",
            f"{mount}/sign/{role}",
            {
                "public_key": public_key,
                "cert_type": role,
                "valid_principals": ",".join(principals),
                "ttl": ttl,
                "key_id": key_id,
            },
        )
        return str(answer["data"]["signed_key"]).strip()
