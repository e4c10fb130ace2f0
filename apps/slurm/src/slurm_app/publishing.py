"""`slurm-app bundle --publish`: the packages as a signed artifact of the app, which machines may then be given.

The key, the login, the right to push and the app's trust in the key are checked before the packages are made and sent.
An artifact whose signature does not verify is deleted again.
"""

import asyncio
import getpass
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuaas_contract.artifacts import Artifact
from gpuaas_sdk import ApiError, GpuaasClient, GpuaasError, PackageBundle, RetryPolicy, SignatureError, TransportError
from gpuaas_sdk.bundles.building import Say
from gpuaas_sdk.profile.config import load
from gpuaas_sdk.profile.errors import ProfileError
from gpuaas_sdk.profile.target import find_credentials, find_target
from gpuaas_sdk.pushing import (
    MAKE_A_KEY,
    UnusableKeyError,
    end_progress,
    needs_password,
    read_signing_key,
    show_progress,
    uploads_directory,
)
from gpuaas_sdk.registry import RegistryError
from gpuaas_sdk.signing import public_pem
from slurm_app.bundle import ARTIFACT
from slurm_app.errors import RefusedError

APP = "slurm"
MEDIA_TYPE = "application/vnd.gpuaas.bundle.tar"
"""Both as the manifest has them."""
PASSWORD_SETTING = "GPUAAS_SIGN_KEY_PASSWORD"  # noqa: S105 - the name of the setting
AGAIN = "give the same command again: it goes on where it stopped"


@dataclass(frozen=True, slots=True)
class Publisher:
    key_file: Path
    key: str
    """As PEM, without a password."""
    api_url: str | None
    context: str | None

    @classmethod
    def read(cls, key_file: Path, *, api_url: str | None, context: str | None) -> "Publisher":
        """The platform and the login are those of `gpuaas`: flag, environment, file."""
        return cls(
            key_file,
            _read_key(key_file),
            api_url or os.environ.get("GPUAAS_API_URL"),
            context or os.environ.get("GPUAAS_CONTEXT"),
        )


def _read_key(path: Path) -> str:
    try:
        return read_signing_key(path, _read_password(path) if needs_password(path) else None)
    except UnusableKeyError as error:
        raise RefusedError("unusable_key", f"{error}\n  next: {MAKE_A_KEY}") from None


def _read_password(path: Path) -> str:
    """Never from a flag, which everybody on the host could read."""
    if (given := os.environ.get(PASSWORD_SETTING)) is not None:
        return given
    if not sys.stdin.isatty():
        raise RefusedError("unusable_key", f"{path} needs a password: give it in {PASSWORD_SETTING}")
    return getpass.getpass(f"Password of {path}: ")


def publish(publisher: Publisher, make: Callable[[], PackageBundle], say: Say) -> Artifact:
    return asyncio.run(_publish(publisher, make, say))


async def _publish(publisher: Publisher, make: Callable[[], PackageBundle], say: Say) -> Artifact:
    async with _platform(publisher) as client:
        known = await _check(client, publisher)
        bundle = await asyncio.to_thread(make)
        say(f"Sending it to {client.api_url} …")
        made = await client.artifacts.push(
            ARTIFACT,
            bundle.path,
            app_slug=APP,
            media_type=MEDIA_TYPE,
            sign_key=publisher.key,
            resume_dir=uploads_directory(),
            on_progress=show_progress(bundle.path.name, bundle.size),
        )
        end_progress(f"{bundle.path.name} {made.size} bytes")
        try:
            await client.artifacts.verify(made.id)
        except SignatureError:
            if made.id not in known:
                await client.artifacts.delete(made.id)
            raise
        promoted = await client.artifacts.promote(made.id)
    say(f"{ARTIFACT} of the app {APP}: {promoted.status}, signed with {publisher.key_file}")
    say(f"  digest: {promoted.digest}")
    file, key = shlex.quote(str(bundle.path)), shlex.quote(str(publisher.key_file))
    say(f"Next: gpuaas app publish MANIFEST --artifact {ARTIFACT}={file} --sign-key {key}")
    return promoted


async def _check(client: GpuaasClient, publisher: Publisher) -> set[str]:
    """The artifacts that were there before; refused here, nothing was made or sent."""
    await client.artifacts.check_push(ARTIFACT, app_slug=APP)
    trusted = await client.trusted_keys.list(app_slug=APP).all()
    if public_pem(publisher.key).strip() not in {key.public_key_pem.strip() for key in trusted}:
        path = shlex.quote(str(publisher.key_file))
        names = ", ".join(key.name for key in trusted) or "none"
        raise RefusedError(
            "key_not_trusted",
            f"the app {APP} does not trust {publisher.key_file} (it trusts: {names}); nothing was sent\n"
            f"  next: openssl pkey -in {path} -pubout -out key.pub && gpuaas trusted-key add NAME key.pub --app {APP}",
        )
    return {artifact.id for artifact in await client.artifacts.list(app_slug=APP).all()}


@asynccontextmanager
async def _platform(publisher: Publisher) -> AsyncIterator[GpuaasClient]:
    """Open a client; turn its errors into words for the person in front of the program."""
    try:
        target = find_target(load(), context=publisher.context, api_url=publisher.api_url)
        # People wait in front of it: say sooner than a controller would that nobody answers.
        retry = RetryPolicy(attempts=4)
        credentials, ca_file = find_credentials(target), target.ca_file
        client = GpuaasClient(target.api_url, credentials, retry=retry, user_agent="slurm-app", ca_file=ca_file)
        async with client:
            with client.correlation():
                yield client
    except ProfileError as error:
        raise RefusedError("no_platform", f"{error}\n  next: {error.hint}") from None
    except RegistryError as error:
        raise RefusedError("publish_refused", f"you may not publish {ARTIFACT} of the app {APP}: {error}") from None
    except ApiError as error:
        words = f"the platform refused: {error.detail} ({error.code}, correlation id {error.correlation_id})"
        raise RefusedError("publish_refused", words) from None
    except TransportError as error:
        raise RefusedError("platform_away", f"cannot publish: {error}\n  next: {AGAIN}") from None
    except GpuaasError as error:
        raise RefusedError("publish_failed", f"cannot publish: {error}") from None
