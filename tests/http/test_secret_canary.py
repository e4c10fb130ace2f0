"""Secrets are sent and fetched in every way there is, rightly and wrongly; then they are looked for everywhere."""

import base64
import secrets
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpuaas_contract.identity import Role
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.secrets import SecretKind, SecretSpec
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import InvalidRequestError
from gpuaas_stack.settings import Settings
from tests.e2e.command_line import CommandLine
from tests.support.database import dump
from tests.support.leases import hold_lease
from tests.support.openbao import Vault
from tests.support.world import MANIFEST, World


def key_and_traces() -> tuple[str, list[str]]:
    """An OpenSSH private key, and what of it must be nowhere."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    raw = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    # Its first lines hold the public half; the private one begins in the fifth.
    return text, [text.splitlines()[4], base64.b64encode(raw).decode(), raw.hex()]


def files_of(settings: Settings) -> dict[str, bytes]:
    """Logs, the audit log of OpenBao, its storage and that of PostgreSQL with its write-ahead log: all bytes."""
    return {str(path): path.read_bytes() for path in settings.state_dir.rglob("*") if path.is_file()}


def processes() -> dict[str, bytes]:
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                found[f"{directory.name}/{name}"] = (directory / name).read_bytes()
            except OSError:
                continue
    return found


async def test_no_secret_is_anywhere_but_where_it_belongs(settings: Settings, world: World, tmp_path: Path) -> None:
    key, traces = key_and_traces()
    hidden = list(traces)
    answers: list[httpx.Response] = []
    token = (await world.admin.fetch_token()).access_token
    canary = f"canary{secrets.token_hex(12)}"
    hidden.append(canary)
    async with httpx.AsyncClient(base_url=settings.api_url, headers={"Authorization": f"Bearer {token}"}) as http:

        async def post(body: object) -> httpx.Response:
            headers = {"Idempotency-Key": secrets.token_hex(8)}
            first = await http.post("/v1/credentials", json=body, headers=headers)
            answers.extend([first, await http.post("/v1/credentials", json=body, headers=headers)])
            return first

        wanted = {"project_id": world.project.id, "name": "canary"}
        made = await post({**wanted, "private_key": key})
        assert made.status_code == 201
        for wrong in (
            {**wanted, "private_key": key},
            {**wanted, "name": "NOT A NAME", "private_key": key},
            {**wanted, "name": "list", "private_key": [key, canary]},
            {**wanted, "name": "object", "private_key": {"key": key, canary: 1}},
            {**wanted, "name": "long", "private_key": key * 100},
            {**wanted, "name": "bad", "private_key": canary},
            {**wanted, "name": "bad", "private_key": key[:200] + canary},
            {**wanted, "name": "misspelt", "privat_key": key},
        ):
            assert (await post(wrong)).is_error
        cut = f'{{"name": "x", "private_key": "{canary}'.encode()
        answers.append(await http.post("/v1/credentials", content=cut))

    credential = await world.admin.credentials.get(made.json()["id"])
    lease = await hold_lease(world, "first", access=credential)
    assert (await lease.credential(credential.id)).reveal_text().splitlines()[4:] == key.splitlines()[4:]
    generated = await world.admin.credentials.create(world.project.id, "generated")
    lease = await hold_lease(world, access=generated)
    hidden.append((await lease.credential(generated.id)).reveal_text().splitlines()[4])
    ensure = world.controller.secrets.ensure
    secret = await ensure(*lease.both, "bytes", SecretSpec(kind=SecretKind.BYTES, size=33))
    raw = (await lease.secret(secret.id)).reveal()
    hidden += [base64.b64encode(raw).decode(), raw.hex()]
    password = await ensure(*lease.both, "password", SecretSpec(kind=SecretKind.PASSWORD, size=40))
    hidden.append((await lease.secret(password.id)).reveal_text())
    await world.admin.secrets.rotate(secret.id)
    delivery = await world.controller.secrets.deliver(secret.id, *lease.both)
    assert delivery.wrapping_token is not None
    value = await lease.unwrap(delivery)
    assert delivery.wrapping_token not in repr(delivery)
    hidden += [delivery.wrapping_token, base64.b64encode(value.reveal()).decode()]

    # A person reads one, by HTTP and by the command line, with the right password and with a wrong one.
    typed = f"canary{secrets.token_hex(12)}"
    reading = await read_as_a_person(settings, world, typed, tmp_path)
    hidden += [*reading, typed]

    said = ask_the_command_line(settings, token, world, lease.instance_id, tmp_path)
    assert "bytes" in said
    stored = dump(settings)
    assert credential.id in stored, "the dump holds what it should"
    with Vault(settings) as vault:
        assert traces[0] in (vault.value(credential.id) or ""), "the key is where it belongs"
    # Our own process is the one that sent them.
    places = {"the dump": stored.encode(), "the command line": said.encode(), **files_of(settings), **processes()}
    places |= {f"answer {number}": answer.content for number, answer in enumerate(answers)}
    assert any(b"secret.unwrap" in content for content in places.values())
    for number, trace in enumerate(hidden):
        found = [where for where, content in places.items() if trace.encode() in content]
        assert not found, f"secret {number} is in {found}"
    assert not [where for where, content in places.items() if raw in content]


async def read_as_a_person(settings: Settings, world: World, typed: str, home: Path) -> list[str]:
    """Return the values that were read."""
    declared = [{"name": "door", "kind": "password", "size": 40, "readable_by": ["project_member"]}]
    manifest = {**MANIFEST, "slug": world.app_slug, "version": "1.5.0", "secrets": declared}
    await world.admin.app_versions.publish(Manifest.model_validate(manifest))
    lease = await hold_lease(world, "readable")
    await world.controller.secrets.ensure(*lease.both, "door")
    password = f"canary{secrets.token_hex(12)}"
    user = await world.admin.users.create(f"{secrets.token_hex(6)}@example.com", password)
    await world.admin.memberships.create(user.id, Role.PROJECT_MEMBER, project_id=world.project.id)
    async with GpuaasClient(settings.api_url, PasswordCredentials(user.email, password)) as person:
        with pytest.raises(InvalidRequestError):
            await person.secrets.read(lease.instance_id, "door", typed)
        found = await person.secrets.read(lease.instance_id, "door", password)
        token = (await person.fetch_token()).access_token
    chosen = {"GPUAAS_API_URL": settings.api_url, "GPUAAS_TOKEN": token, "GPUAAS_PROJECT": world.project.id}
    line = CommandLine(home / "reader", environment=chosen)
    printed = line.run("secret", "read", lease.instance_id, "door", "--password-stdin", stdin=f"{password}\n")
    assert printed.strip() == found.value
    return [printed.strip(), password]


def ask_the_command_line(settings: Settings, token: str, world: World, instance_id: str, home: Path) -> str:
    chosen = {"GPUAAS_API_URL": settings.api_url, "GPUAAS_TOKEN": token, "GPUAAS_PROJECT": world.project.id}
    line = CommandLine(home, environment=chosen)
    said = line.run("secret", "list", instance_id, "-o", "json") + line.run("secret", "list", instance_id)
    said += line.run("secret", "show", "bytes", "--instance", instance_id)
    said += line.run("secret", "show", "password", "--instance", instance_id, "-o", "yaml")
    said += line.run("secret", "rotate", "password", "--instance", instance_id, "--yes")
    return said + line.run("credential", "show", "generated") + line.run("credential", "show", "canary", "-o", "json")
