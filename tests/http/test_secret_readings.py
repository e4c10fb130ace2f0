"""People read a secret that the app's manifest lets them, with their password; nobody else does, nothing keeps it."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gpuaas_contract.audit import AuditEntry
from gpuaas_contract.identity import Role
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.secrets import ReadSecret, Secret
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, ServiceAccountCredentials
from gpuaas_sdk.errors import (
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    NotFoundError,
)
from gpuaas_stack.settings import Settings
from tests.support.database import audited, connect, dump
from tests.support.identity import PASSWORD, unique
from tests.support.leases import HeldLease, decommission, hold_lease
from tests.support.openbao import Vault
from tests.support.processes import ApiProcess
from tests.support.world import MANIFEST, World, make_key

READERS = ["project_admin", "project_member"]
SECRETS: list[dict[str, Any]] = [
    {"name": "door", "kind": "password", "size": 24, "readable_by": READERS},
    {"name": "key", "kind": "bytes", "readable_by": ["tenant_admin", "project_viewer"]},
    {"name": "inner", "kind": "bytes"},
]


def _manifest(slug: str, version: str, declared: list[dict[str, Any]]) -> Manifest:
    return Manifest.model_validate({**MANIFEST, "slug": slug, "version": version, "secrets": declared})


@dataclass
class Readable:
    """An instance of an app with such secrets, whose controller has made them."""

    world: World
    lease: HeldLease
    made: dict[str, Secret]

    @property
    def id(self) -> str:
        return self.lease.instance_id

    @classmethod
    async def deployed(cls, world: World, *names: str) -> "Readable":
        await world.admin.app_versions.publish(_manifest(world.app_slug, "1.1.0", SECRETS))
        lease = await hold_lease(world)
        made = {name: await world.controller.secrets.ensure(*lease.both, name) for name in names}
        return cls(world, lease, made)

    async def value(self, name: str, version: int | None = None) -> str:
        return (await self.lease.secret(self.made[name].id, version)).reveal_text()


@asynccontextmanager
async def person(world: World, role: Role | None, **where: str) -> AsyncIterator[GpuaasClient]:
    user = await world.admin.users.create(f"{unique('reader')}@example.com", PASSWORD)
    if role is not None:
        place = where or (
            {"tenant_id": world.tenant.id} if role == Role.TENANT_ADMIN else {"project_id": world.project.id}
        )
        await world.admin.memberships.create(user.id, role, **place)
    async with GpuaasClient(world.admin.api_url, PasswordCredentials(user.email, PASSWORD)) as client:
        yield client


async def test_people_of_the_named_roles_read_it(world: World) -> None:
    app = await Readable.deployed(world, "door", "key", "inner")
    listed = {secret.name: secret.readable_by for secret in await world.admin.secrets.list(app.id).all()}
    assert listed == {"door": READERS, "key": ["tenant_admin", "project_viewer"], "inner": []}
    async with person(world, Role.PROJECT_MEMBER) as member:
        found = await member.secrets.read(app.id, "door", PASSWORD)
        assert found.value == await app.value("door")
        assert (found.secret_id, found.version, found.encoding) == (app.made["door"].id, 1, "text")
        assert str(found.value) not in f"{found} {found!r}"
        (entry,) = await readings_of(world, app.made["door"])
        assert entry.principal_id == (await member.principal()).id
        assert entry.detail == {"name": "door", "version": 1, "instance": app.id}
    # A role stands for itself: an admin of the tenant, or of the platform, is not named for this one.
    for reader in (Role.TENANT_ADMIN, Role.PROJECT_VIEWER):
        async with person(world, reader) as other:
            assert (await other.secrets.read(app.id, "key", PASSWORD)).encoding == "base64"
            with pytest.raises(ForbiddenError, match="only project_admin or project_member may"):
                await other.secrets.read(app.id, "door", PASSWORD)
    with pytest.raises(ForbiddenError, match="nobody may"):
        await world.admin.secrets.read(app.id, "inner", "whatever")
    assert await readings_of(world, app.made["inner"]) == []


async def readings_of(world: World, secret: Secret) -> list[AuditEntry]:
    return await world.admin.audit.list(tenant_id=world.tenant.id, action="secret.read", target=secret.id).all()


async def test_who_may_not_reads_nothing(world: World) -> None:
    app = await Readable.deployed(world, "door", "key")
    other_tenant = await world.admin.tenants.create(unique("other"))
    other_project = await world.admin.projects.create(world.tenant.id, unique("other"))
    for role, where in (
        (None, {}),
        (Role.TENANT_ADMIN, {"tenant_id": other_tenant.id}),
        (Role.PROJECT_ADMIN, {"project_id": other_project.id}),
        (Role.APP_PUBLISHER, {"app_slug": world.app_slug}),
    ):
        async with person(world, role, **where) as stranger:
            with pytest.raises(NotFoundError):
                await stranger.secrets.read(app.id, "door", PASSWORD)
    private, public = make_key()
    account = await world.admin.service_accounts.create(world.project.id, "robot", public, role=Role.PROJECT_ADMIN)
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as robot:
        for client in (robot, world.controller):
            with pytest.raises(ForbiddenError, match="for people"):
                await client.secrets.read(app.id, "door", PASSWORD)


async def test_a_wrong_password_counts_like_one_at_the_log_in(world: World, settings: Settings) -> None:
    app = await Readable.deployed(world, "door")
    with ApiProcess(settings, None, port=None, login_failures_per_account="2").serving() as url:
        async with person(world, Role.PROJECT_ADMIN) as admin:
            me = (await admin.principal()).id
            token = (await admin.fetch_token()).access_token
            headers = {"Authorization": f"Bearer {token}"}
            # From an address that no other test has.
            transport = httpx.AsyncHTTPTransport(local_address="127.77.0.1")
            async with httpx.AsyncClient(base_url=url, headers=headers, transport=transport, timeout=60) as http:

                async def read(password: str) -> httpx.Response:
                    body = {"name": "door", "password": password}
                    return await http.post(f"/v1/app-instances/{app.id}/secrets/read", json=body)

                first = await read("not this one")
                assert (first.status_code, first.json()["errors"][0]["pointer"]) == (422, "/password")
                assert "not your present password" in first.json()["detail"]
                statuses = [(await read("nor this one")).status_code for _ in range(8)]
                assert 429 in statuses
                limited = await read(PASSWORD)
                assert limited.status_code == 429, "the right one waits as well"
            assert audited(settings, "secret.read", me) == []

            async def is_told() -> bool:
                return bool(await world.admin.audit.list(action="auth.password_confirm_failed", target=me).all())

            await world.until(is_told, "the audit trail tells of the wrong passwords")


async def test_what_cannot_be_read_is_said(world: World, vault: Vault) -> None:
    app = await Readable.deployed(world)
    async with person(world, Role.PROJECT_ADMIN) as admin:
        read = admin.secrets.read
        with pytest.raises(InvalidRequestError, match=r"declares no secret 'nothing' \(there is: door, key, inner\)"):
            await read(app.id, "nothing", PASSWORD)
        with pytest.raises(InvalidStateError, match="has not been made yet"):
            await read(app.id, "door", PASSWORD)
        app.made["door"] = await world.controller.secrets.ensure(*app.lease.both, "door")
        first = await read(app.id, "door", PASSWORD)
        with pytest.raises(InvalidStateError, match="no valid version 2"):
            await read(app.id, "door", PASSWORD, version=2)
        await world.admin.secrets.rotate(app.made["door"].id)
        second = await read(app.id, "door", PASSWORD)
        assert (second.version, second.value == first.value) == (2, False)
        assert (await read(app.id, "door", PASSWORD, version=1)).value == first.value
        await world.admin.secrets.rotate(app.made["door"].id)
        with pytest.raises(InvalidStateError, match="no valid version 1"):
            await read(app.id, "door", PASSWORD, version=1)
        vault.destroy(app.made["door"].id, 3)
        with pytest.raises(InvalidStateError, match="has no version 3 of the secret door any more"):
            await read(app.id, "door", PASSWORD)
        await app.lease.client.operations.yield_lease(*app.lease.both)
        claim = await app.lease.client.operations.claim(app.lease.operation_id, "test")
        await app.lease.client.operations.complete(app.lease.operation_id, claim.fencing_token)
        await decommission(world, app.id)
        with pytest.raises(InvalidStateError, match="the instance has ended, and its secrets are destroyed"):
            await read(app.id, "door", PASSWORD)


async def test_bad_requests_change_nothing(world: World, settings: Settings) -> None:
    app = await Readable.deployed(world, "door")
    good: dict[str, Any] = {"name": "door", "password": PASSWORD}
    canary = secrets.token_hex(16)
    async with person(world, Role.PROJECT_ADMIN) as admin:
        token = (await admin.fetch_token()).access_token
        async with httpx.AsyncClient(
            base_url=settings.api_url, headers={"Authorization": f"Bearer {token}"}, timeout=60
        ) as http:
            path = f"/v1/app-instances/{app.id}/secrets/read"
            for wrong in (
                {},
                {"name": "door"},
                {"password": PASSWORD},
                {**good, "password": ""},
                {**good, "password": canary * 100},
                {**good, "password": [canary]},
                {**good, "password": None},
                {**good, "name": ""},
                {**good, "name": "Door; rm -rf"},
                {**good, "name": "a" * 64},
                {**good, "version": 0},
                {**good, "version": "newest"},
                {**good, "version": 10**12},
                {**good, "passwort": canary},
                [good],
            ):
                answer = await http.post(path, json=wrong)
                assert answer.status_code == 422, wrong
                assert answer.json()["detail"]
                assert canary not in answer.text
            assert (await http.get(path)).status_code in {404, 405}
    assert canary not in dump(settings)
    assert await readings_of(world, app.made["door"]) == []


async def test_a_repeated_request_comes_without_the_value(world: World, settings: Settings) -> None:
    app = await Readable.deployed(world, "door")
    async with person(world, Role.PROJECT_ADMIN) as admin:
        token = (await admin.fetch_token()).access_token
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": unique("read")}
        body = {"name": "door", "password": PASSWORD}
        async with httpx.AsyncClient(base_url=settings.api_url, headers=headers, timeout=60) as http:
            path = f"/v1/app-instances/{app.id}/secrets/read"
            first = await http.post(path, json=body)
            assert first.status_code == 200
            assert first.headers["cache-control"] == "no-store"
            again = await http.post(path, json=body)
            assert again.headers["idempotency-replayed"] == "true"
            assert {**first.json(), "value": None} == {**again.json(), "value": None}
            assert "value" not in again.json()
            assert ReadSecret.model_validate(again.json()).value is None
            # Whoever found the key needs the password all the same.
            assert (await http.post(path, json={**body, "password": "another one"})).status_code == 422
            me = (await admin.principal()).id
            (membership,) = await world.admin.memberships.list(user_id=me).all()
            await world.admin.memberships.delete(membership.id)
            assert (await http.post(path, json=body)).status_code == 404
        value = first.json()["value"]
    stored = dump(settings)
    assert app.made["door"].id in stored
    assert value not in stored, "neither in the kept answer, nor in the feed, nor in the audit trail"
    assert PASSWORD not in stored
    logs = [path for path in settings.state_dir.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    assert logs == []


async def test_a_version_from_before_there_were_readers_has_none(world: World, settings: Settings) -> None:
    await world.admin.app_versions.publish(_manifest(world.app_slug, "1.1.0", SECRETS))
    with connect(settings) as database:
        # As the release before this one stored it; nobody has read it since.
        database.execute(
            """UPDATE app_versions SET manifest = jsonb_set(manifest, '{secrets}',
                   (SELECT jsonb_agg(d - 'readable_by') FROM jsonb_array_elements(manifest->'secrets') d))
               WHERE app_slug = %s AND version = '1.1.0'""",
            [world.app_slug],
        )
    lease = await hold_lease(world)
    await world.controller.secrets.ensure(*lease.both, "door")
    async with person(world, Role.PROJECT_ADMIN) as admin:
        with pytest.raises(ForbiddenError, match="nobody may"):
            await admin.secrets.read(lease.instance_id, "door", PASSWORD)
        (listed,) = await admin.secrets.list(lease.instance_id).all()
        assert (listed.readable_by, listed.spec.size) == ([], 24)
