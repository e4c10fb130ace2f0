"""Artifacts for tests: files, keys that sign them, and the registry looked at from behind."""

import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gpuaas_contract.artifacts import Artifact
from gpuaas_sdk.client import GpuaasClient


@dataclass(frozen=True)
class SigningKey:
    private: str
    public: str


def signing_key() -> SigningKey:
    """ECDSA P-256, as cosign makes it."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return SigningKey(private, public)


async def push(
    client: GpuaasClient,
    content: bytes,
    *,
    name: str = "packages",
    app_slug: str | None = None,
    project_id: str | None = None,
    sign_key: str | None = None,
    media_type: str = "application/octet-stream",
) -> Artifact:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file.bin"
        path.write_bytes(content)
        return await client.artifacts.push(
            name, path, app_slug=app_slug, project_id=project_id, sign_key=sign_key, media_type=media_type
        )


async def promoted(
    client: GpuaasClient,
    content: bytes | None = None,
    *,
    app_slug: str | None = None,
    project_id: str | None = None,
    media_type: str = "application/octet-stream",
) -> Artifact:
    """Signed with a key that its owner trusts, verified and promoted."""
    key = signing_key()
    name = f"key-{secrets.token_hex(4)}"
    await client.trusted_keys.add(name, key.public, app_slug=app_slug, project_id=project_id)
    made = await push(
        client,
        content if content is not None else secrets.token_bytes(100),
        app_slug=app_slug,
        project_id=project_id,
        sign_key=key.private,
        media_type=media_type,
    )
    await client.artifacts.verify(made.id)
    return await client.artifacts.promote(made.id)


async def repository_access(client: GpuaasClient, repository: str) -> httpx.AsyncClient:
    """For what no client of ours would do in a repository."""
    url = (await client.registry.get()).url
    token = (await client.registry.token(repository, push=True)).token
    return httpx.AsyncClient(base_url=f"{url}/v2/{repository}/", headers={"Authorization": f"Bearer {token}"})
