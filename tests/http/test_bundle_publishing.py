"""`slurm-app bundle --publish`: made, signed, sent and promoted by one command, or refused with nothing half there."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gpuaas_contract.artifacts import Artifact
from gpuaas_contract.identity import Role
from gpuaas_sdk.bundles import building
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from slurm_app.bundle import GROUPS
from slurm_app.limits.package import ensure_repository, sources_digest
from slurm_app.publishing import MEDIA_TYPE
from tests.support.artifacts import signing_key
from tests.support.identity import PASSWORD

pytestmark = pytest.mark.own_platform("each publishes the same app")
PROGRAM = Path(sys.executable).parent / "slurm-app"
MANIFEST = Path(__file__).parents[2] / "apps/slurm/manifest.yaml"


@dataclass
class Publishing:
    """A publisher's shell: a home, a key, an image's status, and the packages for it in the cache."""

    home: Path
    api_url: str
    token: str

    @property
    def file(self) -> Path:
        return self.home / "packages.tar"

    async def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {"GPUAAS_API_URL": self.api_url, "GPUAAS_TOKEN": self.token, "LC_ALL": "C.UTF-8"}
        place = {"HOME": str(self.home), "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
        return await asyncio.to_thread(
            subprocess.run,
            command,
            env={**settings, **place, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    async def call(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        home = self.home
        places = ["--output", str(self.file), "--dpkg-status", f"{home}/status", "--cache", f"{home}/cache"]
        return await self.run(PROGRAM, "bundle", *places, *words, **environment)

    async def refused(self, *words: str, **environment: str) -> str:
        done = await self.call(*words, **environment)
        assert done.returncode == 1, done
        assert done.stderr.startswith("slurm-app: "), done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def write_key(self, pem: str) -> str:
        (self.home / "key.pem").write_text(pem)
        return str(self.home / "key.pem")


def write_small_bundle(home: Path) -> None:
    """Into the cache, as the packages for an image with an empty status."""
    root, cache = home / "small", home / "cache"
    (root / "DEBIAN").mkdir(parents=True)
    control = "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: x\n"
    (root / "DEBIAN/control").write_text(control)
    (root / "content").write_bytes(os.urandom(3_000_000))
    deb = home / "small_1_all.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--build", root, deb], check=True, capture_output=True)
    (home / "status").write_text("")
    # As if the plug-in had been built: nothing is asked of the archive.
    repository = cache / f"limits-{sources_digest()}"
    repository.mkdir(parents=True)
    (repository / "Packages").touch()
    sources = ensure_repository(cache, building.find_sources(), Path, refresh=False)
    key = building.cache_key(b"", sources.read_bytes(), GROUPS)
    building.pack([deb], GROUPS, {group: [deb] for group in GROUPS}, cache / f"{key}.tar")


@pytest.fixture
async def publishing(settings: Settings, admin: GpuaasClient, tmp_path: Path) -> Publishing:
    write_small_bundle(tmp_path)
    return Publishing(tmp_path, settings.api_url, await publisher_token(admin, "slurm"))


async def publisher_token(admin: GpuaasClient, app_slug: str) -> str:
    user = await admin.users.create(f"{app_slug}@example.com", PASSWORD)
    await admin.memberships.create(user.id, Role.APP_PUBLISHER, app_slug=app_slug)
    async with GpuaasClient(admin.api_url, PasswordCredentials(user.email, PASSWORD)) as person:
        return (await person.fetch_token()).access_token


async def artifacts(admin: GpuaasClient) -> list[Artifact]:
    return await admin.artifacts.list(app_slug="slurm").all()


async def test_one_command_makes_signs_and_publishes(publishing: Publishing, admin: GpuaasClient) -> None:
    """With a key that has a password; and what it says to do next works."""
    key = signing_key()
    await admin.trusted_keys.add("builds", key.public, app_slug="slurm")
    private = load_pem_private_key(key.private.encode(), None)
    locked = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pass")).decode()
    words = ["--publish", "--key", publishing.write_key(locked)]
    assert "ncorrect password" in await publishing.refused(*words, GPUAAS_SIGN_KEY_PASSWORD="another")
    assert not publishing.file.exists()
    done = await publishing.call(*words, GPUAAS_SIGN_KEY_PASSWORD="pass")
    assert done.returncode == 0, done
    (made,) = await artifacts(admin)
    assert (made.name, made.status, made.media_type) == ("packages", "promoted", MEDIA_TYPE)
    assert made.content_digest == building.digest_of(publishing.file)
    assert made.digest in done.stdout
    assert "promoted" in done.stdout
    assert "packages.tar 100 %" in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Next: ")]
    publishing.write_key(key.private)
    command = line.removeprefix("Next: ").replace("MANIFEST", str(MANIFEST))
    followed = await publishing.run("bash", "-c", command)
    assert followed.returncode == 0, followed
    assert "is in the registry already" in followed.stderr
    version = await admin.app_versions.get("slurm", "latest")
    assert [slot.digest for slot in version.manifest.artifacts] == [made.digest]
    assert [each.id for each in await artifacts(admin)] == [made.id], "the same packages are the same artifact"


async def test_what_the_platform_refuses_leaves_nothing_behind(publishing: Publishing, admin: GpuaasClient) -> None:
    key = signing_key()
    words = ["--publish", "--key", publishing.write_key(key.private)]
    await admin.trusted_keys.add("builds", signing_key().public, app_slug="slurm")
    untrusted = await publishing.refused(*words)
    assert "does not trust" in untrusted
    assert "it trusts: builds" in untrusted
    assert "gpuaas trusted-key add NAME key.pub --app slurm" in untrusted
    await admin.trusted_keys.add("also", key.public, app_slug="slurm")
    assert "the platform refused" in await publishing.refused(*words, GPUAAS_TOKEN="wrong")
    stranger = await publisher_token(admin, "another")
    denied = await publishing.refused(*words, GPUAAS_TOKEN=stranger)
    assert "you may not publish packages of the app slurm" in denied
    assert not publishing.file.exists(), "refused before the packages were made"
    assert await artifacts(admin) == []
