"""Fingerprints of requests tell nothing about what is in them, and are the same in every process."""

import hashlib
import json
import secrets

import httpx
import pytest

from gpuaas_contract.identity import Role
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ForbiddenError
from gpuaas_stack.settings import Settings
from tests.support.database import connect, dump
from tests.support.processes import log_file
from tests.support.world import World

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
PASSWORD = "a password that could be guessed"


def plain_hashes(path: str, body: bytes) -> dict[str, str]:
    """Compute the fingerprint as somebody would who guesses the request and has no key."""
    contents = {
        "body": body,
        "password": PASSWORD.encode(),
        "request": f"POST {path}?\n".encode() + body,
        "request without query": f"POST {path}\n".encode() + body,
    }
    return {
        f"{name} of the {what}": hashlib.new(name, content).hexdigest()
        for what, content in contents.items()
        for name in ("sha256", "sha1", "md5")
    }


@pytest.mark.own_platform("it looks at all requests that are remembered")
async def test_a_guessed_request_cannot_be_found_by_its_hash(
    settings: Settings, admin: GpuaasClient, second_api_url: str
) -> None:
    body = json.dumps({"email": "guessed@example.com", "password": PASSWORD}).encode()
    headers = {
        "Authorization": f"Bearer {(await admin.fetch_token()).access_token}",
        "Content-Type": "application/json",
        "Idempotency-Key": secrets.token_hex(8),
    }
    async with httpx.AsyncClient(headers=headers) as http:
        made = await http.post(f"{settings.api_url}/v1/users", content=body)
        assert made.status_code == 201
        # Another process has the same key, and knows the request again.
        again = await http.post(f"{second_api_url}/v1/users", content=body)
        assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
        other = await http.post(f"{second_api_url}/v1/users", content=body.replace(b"guessed@", b"another@"))
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    with connect(settings) as database:
        kept = database.execute("SELECT fingerprint FROM idempotency_keys").fetchall()
        audited = database.execute("SELECT fingerprint FROM audit_entries WHERE action = 'user.create'").fetchall()
    assert kept == audited
    assert len(kept[0][0]) == 64
    looked_at = {"database": dump(settings), "log": log_file(settings).read_text()}
    assert kept[0][0] in looked_at["database"], "the dump holds what it should"
    for what, digest in plain_hashes("/v1/users", body).items():
        for where, text in looked_at.items():
            assert digest not in text, f"the {where} holds the {what}"


async def test_what_was_denied_has_a_fingerprint_too(settings: Settings, world: World) -> None:
    user = await world.admin.users.create("eve@example.com", PASSWORD)
    await world.admin.memberships.create(user.id, Role.PROJECT_VIEWER, project_id=world.project.id)
    async with GpuaasClient(settings.api_url, PasswordCredentials(user.email, PASSWORD)) as eve:
        for name in ("one", "one", "two"):
            with pytest.raises(ForbiddenError):
                await eve.allocations.create(world.project.id, name)
    with connect(settings) as database:
        rows = database.execute(
            "SELECT fingerprint FROM audit_entries WHERE outcome = 'denied' AND principal_id = %s ORDER BY seq",
            [user.id],
        ).fetchall()
    first, second, third = (fingerprint for (fingerprint,) in rows)
    assert len(first) == 64
    assert first == second != third


async def test_every_change_of_a_known_principal_has_one(settings: Settings, world: World) -> None:
    """Also those whose answer is not kept for an idempotency key."""
    machine = await world.allocation()
    await world.admin.allocations.access(machine.id, PUBLIC_KEY)
    await world.admin.join_tokens.create("second")
    with connect(settings) as database:
        rows = database.execute(
            "SELECT action, fingerprint FROM audit_entries WHERE principal_id = %s AND action NOT LIKE 'auth.%%'",
            [(await world.admin.principal()).id],
        ).fetchall()
    assert {"access.grant", "join_token.create", "allocation.create"} <= {action for action, _ in rows}
    assert [action for action, fingerprint in rows if len(fingerprint) != 64] == []
