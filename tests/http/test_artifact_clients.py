"""Other people's programs: `oras` (for Python) pushes and pulls, `securesystemslib` signs in cosign's format."""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import oras.client  # type: ignore[import-untyped]
import pytest
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]

from gpuaas_contract.artifacts import ArtifactStatus
from gpuaas_contract.identity import Role
from gpuaas_sdk.errors import SignatureError
from gpuaas_stack.settings import Settings
from tests.support.artifacts import push
from tests.support.processes import ApiProcess
from tests.support.world import World


@pytest.fixture(autouse=True)
def token_service(servers: Settings, settings: Settings) -> Iterator[None]:
    """The registry of the run sends everybody to one address for tokens: the API of this test answers there, too."""
    with ApiProcess(settings, port=servers.api_port).serving():
        yield


@pytest.fixture
async def login(world: World) -> tuple[str, str]:
    """A service account that may push to the project."""
    account = await world.admin.service_accounts.create(world.project.id, "builds", role=Role.PROJECT_ADMIN)
    secret = (await world.admin.service_accounts.add_secret(account.id)).secret
    assert secret is not None
    return account.id, secret


def host_of(settings: Settings) -> str:
    return settings.registry_address.removeprefix("http://")


def oras_client(settings: Settings, login: tuple[str, str]) -> oras.client.OrasClient:
    client = oras.client.OrasClient(hostname=host_of(settings), insecure=True, auth_backend="token")
    client.auth.set_basic_auth(*login)
    return client


async def test_oras_pushes_and_pulls(
    settings: Settings, world: World, login: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = secrets.token_bytes(3_000_000)
    (tmp_path / "model.bin").write_bytes(content)
    target = f"{host_of(settings)}/projects/{world.project.id}/model:v1"

    def run() -> str:
        client = oras_client(settings, login)
        pushed = client.push(target=target, files=["model.bin:application/vnd.test.model"])
        assert pushed.status_code == 201
        (pulled,) = client.pull(target=target, outdir=str(tmp_path / "pulled"))
        assert Path(pulled).read_bytes() == content
        return str(pushed.headers["docker-content-digest"])

    digest = await asyncio.to_thread(run)
    made = await world.admin.artifacts.register("model", digest, project_id=world.project.id)
    assert (made.media_type, made.file_name, made.size) == ("application/vnd.test.model", "model.bin", len(content))
    assert made.content_digest == f"sha256:{hashlib.sha256(content).hexdigest()}"

    def stranger() -> None:
        oras_client(settings, (login[0], "wrong")).pull(target=target, outdir=str(tmp_path / "stolen"))

    # Whom the registry does not let in, `oras` asks for five times more, and would rest two minutes in between.
    monkeypatch.setattr("oras.decorator.time", SimpleNamespace(sleep=lambda seconds: None))
    with pytest.raises(Exception, match=r"[Uu]nauthorized|401|[Aa]uthentication"):
        await asyncio.to_thread(stranger)
    assert not list((tmp_path / "stolen").glob("*"))


async def test_a_signature_made_without_anything_of_ours_is_accepted(
    settings: Settings, world: World, login: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`securesystemslib` signs what cosign would write, word for word, and `oras` puts it where cosign would."""
    monkeypatch.chdir(tmp_path)
    admin, project = world.admin, world.project.id
    made = await push(admin, b"signed by another program", project_id=project)
    signer = CryptoSigner.generate_ecdsa()
    document = (
        f'{{"critical":{{"identity":{{"docker-reference":"{host_of(settings)}/{made.repository}"}},'
        f'"image":{{"docker-manifest-digest":"{made.digest}"}},'
        '"type":"cosign container image signature"},"optional":null}'
    )
    (tmp_path / "payload").write_text(document)
    target = f"{host_of(settings)}/{made.repository}:{made.digest.replace(':', '-')}.sig"

    def sign(text: str) -> None:
        signature = base64.b64encode(bytes.fromhex(signer.sign(text.encode()).signature)).decode()
        annotations = {"payload": {"dev.cosignproject.cosign/signature": signature}}
        (tmp_path / "annotations.json").write_text(json.dumps(annotations))
        pushed = oras_client(settings, login).push(
            target=target,
            files=["payload:application/vnd.dev.cosign.simplesigning.v1+json"],
            annotation_file="annotations.json",
        )
        assert pushed.status_code == 201

    trusted = await admin.trusted_keys.add("another", signer.public_key.keyval["public"], project_id=project)
    await asyncio.to_thread(sign, document.replace("optional", "Optional"))
    with pytest.raises(SignatureError, match="or was changed since"):
        await admin.artifacts.verify(made.id)
    await asyncio.to_thread(sign, document)
    verified = await admin.artifacts.verify(made.id)
    assert (verified.status, verified.trusted_key_id) == (ArtifactStatus.VERIFIED, trusted.id)
