"""Grants of people on machines, and what they bring: on a simulated node, which does as it is told."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpuaas_contract.agent_link import SetUsers
from gpuaas_contract.identity import Role, User
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import (
    ApiError,
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    NameTakenError,
    NotFoundError,
    UnavailableError,
)
from gpuaas_sdk.retry import NO_RETRY
from gpuaas_stack.settings import Settings
from tests.support.database import connect
from tests.support.identity import PASSWORD
from tests.support.policy_world import PUBLIC_KEY
from tests.support.world import World


@asynccontextmanager
async def person(world: World, name: str, role: Role | None = Role.PROJECT_MEMBER) -> AsyncIterator["Person"]:
    user = await world.admin.users.create(f"{name}@{secrets.token_hex(4)}.example", PASSWORD)
    if role is not None:
        where = {"tenant_id": world.tenant.id} if role == Role.TENANT_ADMIN else {"project_id": world.project.id}
        await world.admin.memberships.create(user.id, role, **where)
    credentials = PasswordCredentials(user.email, PASSWORD)
    async with GpuaasClient(world.admin.api_url, credentials, retry=NO_RETRY) as client:
        yield Person(user, client)


class Person:
    def __init__(self, user: User, client: GpuaasClient) -> None:
        self.user = user
        self.client = client


def told(world: World) -> list[Any]:
    """The people that the machine was told of last."""
    return [task.spec for task in world.node.taken if isinstance(task.spec, SetUsers)][-1].users


async def test_a_grant_gives_a_person_a_user_of_their_own(world: World) -> None:
    machine = await world.allocation()
    # A name that no other test of this module gives: the first one has it for itself.
    async with person(world, "ida") as ada:
        with pytest.raises(ForbiddenError, match="gpuaas grant create one ida@"):
            await ada.client.allocations.access(machine.id, PUBLIC_KEY)
        grant = await world.admin.grants.create(machine.id, ada.user.email, sudo=True)
        assert (grant.login, grant.sudo, grant.allocation_name) == ("u-ida", True, "one")
        assert 10_001 <= grant.uid <= 59_999
        grant = await world.grant_at_rest(grant.id)
        assert (grant.status, grant.reason) == ("active", "")
        (user,) = told(world)
        assert (user.login, user.uid, user.sudo, user.principal) == ("u-ida", grant.uid, True, grant.id)
        access = await ada.client.allocations.access(machine.id, PUBLIC_KEY, lifetime_seconds=60)
        assert access.login == "u-ida"
        assert access.expires_at < datetime.now(UTC) + timedelta(seconds=61)
        assert [own.id async for own in ada.client.grants.own()] == [grant.id]
        with pytest.raises(ForbiddenError):
            await ada.client.allocations.access(machine.id, PUBLIC_KEY, administrator=True)
        with pytest.raises(NameTakenError, match="already"):
            await world.admin.grants.create(machine.id, ada.user.id)

        revoked = await world.admin.grants.revoke(grant.id)
        assert revoked.ended_at is not None
        with pytest.raises(ForbiddenError):
            await ada.client.allocations.access(machine.id, PUBLIC_KEY)
        assert (await world.grant_at_rest(grant.id)).status == "revoked"
        assert told(world) == []
        again = await world.admin.grants.create(machine.id, ada.user.id)
        assert again.uid == grant.uid, "one number for each person"
        assert again.id != grant.id
    entries = [entry.action async for entry in world.admin.audit.list(project_id=world.project.id)]
    assert {"grant.create", "grant.revoke", "access.grant"} <= set(entries)


async def test_roles_give_no_grant_and_grants_no_role(world: World) -> None:
    machine = await world.allocation()
    async with (
        person(world, "viewer", Role.PROJECT_VIEWER) as viewer,
        person(world, "member") as member,
        person(world, "chief", Role.PROJECT_ADMIN) as chief,
    ):
        for client in (viewer.client, member.client):
            with pytest.raises(ForbiddenError):
                await client.grants.create(machine.id, member.user.id)
            with pytest.raises(ForbiddenError):
                await client.allocations.access(machine.id, PUBLIC_KEY)
        # Who administers the machine needs none, and is then the machine's own user.
        assert (await chief.client.allocations.access(machine.id, PUBLIC_KEY)).login == "gpuaas"
        grant = await chief.client.grants.create(machine.id, viewer.user.id)
        await world.grant_at_rest(grant.id)
        assert (await viewer.client.allocations.access(machine.id, PUBLIC_KEY)).login == "u-viewer"
        own = await chief.client.grants.create(machine.id, chief.user.id)
        await world.grant_at_rest(own.id)
        assert (await chief.client.allocations.access(machine.id, PUBLIC_KEY)).login == "u-chief"
        as_admin = await chief.client.allocations.access(machine.id, PUBLIC_KEY, administrator=True)
        assert as_admin.login == "gpuaas"
        with pytest.raises(ForbiddenError):
            await member.client.grants.revoke(grant.id)
        assert (await viewer.client.grants.revoke(grant.id)).status == "revoking"


async def test_people_of_other_tenants_are_not_known(world: World, admin: GpuaasClient) -> None:
    machine = await world.allocation()
    async with person(world, "stranger", None) as stranger, person(world, "ada") as ada:
        for named in (stranger.user.id, stranger.user.email, "nobody@example.com"):
            with pytest.raises(NotFoundError, match="user"):
                await admin.grants.create(machine.id, named)
        grant = await admin.grants.create(machine.id, ada.user.id)
        for call in (
            stranger.client.grants.get(grant.id),
            stranger.client.grants.revoke(grant.id),
            stranger.client.grants.list(machine.id).all(),
            stranger.client.grants.create(machine.id, stranger.user.id),
            stranger.client.allocations.access(machine.id, PUBLIC_KEY),
        ):
            with pytest.raises(NotFoundError):
                await call
        assert await stranger.client.grants.own().all() == []


@pytest.mark.parametrize("how", ["disabled", "left", "deleted", "machine released"])
async def test_a_grant_ends_with_what_it_depends_on(world: World, how: str) -> None:
    machine = await world.allocation()
    async with person(world, "ada") as ada:
        grant = await world.admin.grants.create(machine.id, ada.user.id)
        await world.grant_at_rest(grant.id)
        match how:
            case "disabled":
                await world.admin.users.update(ada.user.id, disabled=True)
            case "left":
                (membership,) = await world.admin.memberships.list(user_id=ada.user.id).all()
                await world.admin.memberships.delete(membership.id)
            case "deleted":
                await world.admin.users.delete(ada.user.id)
            case "machine released":
                await world.admin.allocations.release(machine.id)
        assert (await world.grant_at_rest(grant.id)).status == "revoked"
        if how != "machine released":
            assert told(world) == []


async def test_an_expired_grant_gives_nothing_and_is_taken_back(world: World, settings: Settings) -> None:
    machine = await world.allocation()
    async with person(world, "ada") as ada:
        with pytest.raises(InvalidRequestError, match="passed already"):
            await world.admin.grants.create(machine.id, ada.user.id, expires_at=datetime.now(UTC))
        soon = datetime.now(UTC) + timedelta(seconds=90)
        grant = await world.admin.grants.create(machine.id, ada.user.id, expires_at=soon)
        await world.grant_at_rest(grant.id)
        access = await ada.client.allocations.access(machine.id, PUBLIC_KEY, lifetime_seconds=900)
        assert access.expires_at <= soon, "a certificate does not outlive the grant"
        with connect(settings) as database:
            database.execute("UPDATE grants SET expires_at = now() - interval '1 second' WHERE id = %s", [grant.id])
        with pytest.raises(ForbiddenError):
            await ada.client.allocations.access(machine.id, PUBLIC_KEY)

        async def ended() -> bool:
            return (await world.admin.grants.get(grant.id)).status == "revoked"

        await world.until(ended, "the expired grant is taken back")
        assert told(world) == []
        assert (await world.admin.grants.get(grant.id)).reason == "it expired"


async def test_a_machine_that_cannot_make_the_user_says_why(world: World) -> None:
    machine = await world.allocation()
    world.node.fails = {"set_users"}
    async with person(world, "ada") as ada, person(world, "bob") as bob:
        grant = await world.admin.grants.create(machine.id, ada.user.id)
        found = await world.grant_at_rest(grant.id)
        assert (found.status, found.reason) == ("failed", "the pool is full")
        with pytest.raises(InvalidStateError, match="the pool is full"):
            await ada.client.allocations.access(machine.id, PUBLIC_KEY)
        world.node.fails = set()
        await world.admin.grants.create(machine.id, bob.user.id)

        async def both() -> bool:
            return {one.status for one in await world.admin.grants.list(machine.id).all()} == {"active"}

        await world.until(both, "the next word for the machine brings both")


async def test_a_machine_out_of_reach_hears_only_the_last_word_and_hears_it_first(world: World) -> None:
    machine = await world.allocation()
    async with person(world, "ada") as ada:
        grant = await world.admin.grants.create(machine.id, ada.user.id)
        await world.grant_at_rest(grant.id)
        world.node.holds = {"set_users", "restart_slice"}
        await world.admin.allocations.restart(machine.id)
        await world.admin.grants.revoke(grant.id)
        again = await world.admin.grants.create(machine.id, ada.user.id)
        with pytest.raises(UnavailableError, match="being told"):
            await ada.client.allocations.access(machine.id, PUBLIC_KEY)
        await world.admin.grants.revoke(again.id)
        assert {one.status for one in await world.admin.grants.list(machine.id).all()} == {"revoking"}
        # A node of its own for the new link: what the old one still brings is not what is asked here.
        back = replace(world.node, taken=[], holds=set())
        link = asyncio.create_task(back.run())
        try:
            for id in (grant.id, again.id):
                assert (await world.grant_at_rest(id)).status == "revoked"
            await world.at_rest(machine.id)
        finally:
            link.cancel()
        kinds = [task.spec.kind for task in back.taken]
        assert kinds == ["set_users", "restart_slice"]


# Own keys


async def test_own_keys_go_to_the_machines_of_ones_grants(world: World) -> None:
    machine = await world.allocation()
    async with person(world, "ada") as ada, person(world, "bob") as bob:
        key = await ada.client.ssh_keys.add("laptop", PUBLIC_KEY + " ada@laptop")
        assert key.fingerprint.startswith("SHA256:")
        assert key.public_key == PUBLIC_KEY, "a comment may name a person or a machine"
        with pytest.raises(NameTakenError):
            await ada.client.ssh_keys.add("again", PUBLIC_KEY)
        grant = await world.admin.grants.create(machine.id, ada.user.id)
        await world.grant_at_rest(grant.id)
        assert told(world)[0].public_keys == [PUBLIC_KEY]
        with pytest.raises(NotFoundError):
            await bob.client.ssh_keys.remove(key.id)
        assert await bob.client.ssh_keys.list().all() == []
        await ada.client.ssh_keys.remove(key.id)

        async def removed() -> bool:
            return bool(told(world)[0].public_keys == [])

        await world.until(removed, "the machine was told that the key is gone")


def openssh(key: Any) -> str:
    return str(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (openssh(rsa.generate_private_key(65537, 2048)), "3072"),
        (openssh(dsa.generate_private_key(1024)), "ssh-dss"),
        ("ssh-ed25519", "one line"),
        ("ssh-ed25519 AAAA", "damaged"),
        ("ssh-ed25519 %%%%", "damaged"),
        (PUBLIC_KEY.replace("ssh-ed25519 ", "ssh-rsa "), "damaged"),
        (f'command="rm -rf /" {PUBLIC_KEY}', "not taken"),
        (f"{PUBLIC_KEY}\n{PUBLIC_KEY}", "one line"),
        (f"{PUBLIC_KEY} a\x00b", "one line"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "not taken"),
    ],
    ids=["rsa", "dsa", "short", "cut", "no base64", "other kind", "options", "two lines", "zero byte", "private"],
)
async def test_weak_and_strange_keys_are_refused(admin: GpuaasClient, text: str, why: str) -> None:
    before = await admin.ssh_keys.list().all()
    with pytest.raises(InvalidRequestError, match=why) as refused:
        await admin.ssh_keys.add("bad", text)
    assert (refused.value.code, refused.value.problem.errors[0].pointer) == ("key_invalid", "/public_key")
    assert await admin.ssh_keys.list().all() == before


async def test_good_keys_of_every_kind_are_taken(admin: GpuaasClient) -> None:
    good = {
        "ed25519": PUBLIC_KEY,
        "ecdsa": openssh(ec.generate_private_key(ec.SECP384R1())),
        "rsa": openssh(rsa.generate_private_key(65537, 3072)),
    }
    added = [await admin.ssh_keys.add(name, text) for name, text in good.items()]
    listed = {key.id: key.bits for key in await admin.ssh_keys.list().all()}
    assert [listed[key.id] for key in added] == [256, 384, 3072]


# Bad input


@pytest.mark.parametrize(
    "body",
    [
        {"public_key": PUBLIC_KEY, "lifetime_seconds": 901},
        {"public_key": PUBLIC_KEY, "lifetime_seconds": 1},
        {"public_key": PUBLIC_KEY, "lifetime_seconds": -1},
        {"public_key": PUBLIC_KEY, "principals": ["root,gpuaas"]},
        {"public_key": PUBLIC_KEY, "login": "root; rm"},
        {"public_key": "ssh-rsa AAAA"},
        {"public_key": PUBLIC_KEY + "\n"},
    ],
    ids=["too long", "too short", "negative", "principals", "login", "rsa", "line break"],
)
async def test_a_certificate_is_for_what_the_platform_says(world: World, body: dict[str, Any]) -> None:
    machine = await world.allocation()
    headers = {"Authorization": f"Bearer {await world.admin.token()}"}
    async with httpx.AsyncClient(base_url=world.admin.api_url, headers=headers) as http:
        answer = await http.post(f"/v1/allocations/{machine.id}/access", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"user_id": "usr_1", "email": "ada@example.com"}, 422),
        ({"user_id": "root; rm -rf /"}, 404),
        ({"email": "root; rm -rf /@example.com"}, 404),
        ({"email": "a, b@example.com"}, 404),
        ({"email": "ada@example.com", "login": "root; rm"}, 422),
        ({"email": "ada@example.com", "uid": 0}, 422),
        ({"email": "ada@example.com", "expires_at": "tomorrow"}, 422),
        ({"email": "x" * 400}, 422),
    ],
)
async def test_bad_grants_are_refused(world: World, body: dict[str, Any], status: int) -> None:
    machine = await world.allocation()
    headers = {"Authorization": f"Bearer {await world.admin.token()}"}
    async with httpx.AsyncClient(base_url=world.admin.api_url, headers=headers) as http:
        answer = await http.post(f"/v1/allocations/{machine.id}/grants", json=body)
    assert answer.status_code == status, answer.text
    assert await world.admin.grants.list(machine.id).all() == []


async def test_two_of_one_name_have_two_logins_and_numbers(world: World) -> None:
    machine = await world.allocation()
    async with person(world, "ada") as one, person(world, "ada") as two, person(world, "root") as root:
        made = await asyncio.gather(
            *(world.admin.grants.create(machine.id, who.user.id) for who in (one, two, root)),
            return_exceptions=True,
        )
        assert not [error for error in made if isinstance(error, BaseException) and not isinstance(error, ApiError)]
        logins = {grant.login: grant.uid for grant in await world.admin.grants.list(machine.id).all()}
        assert len(logins) == len(set(logins.values())) == 3
        assert all(login.startswith("u-") for login in logins), "no package makes a user of such a name"


async def test_a_name_from_before_is_kept_until_no_machine_has_it(world: World, settings: Settings) -> None:
    """It may be that of a daemon. Who has it gets one of the people's with the first grant after the last one ended."""
    first, second = await world.allocation("first"), await world.allocation("second")
    grants, old = world.admin.grants, f"daemon-{secrets.token_hex(4)}"
    async with person(world, "daemon") as who:
        before = await world.grant_at_rest((await grants.create(first.id, who.user.id)).id)
        with connect(settings) as connection:
            connection.execute("UPDATE unix_users SET login = %s WHERE user_id = %s", (old, who.user.id))
            connection.execute("UPDATE grants SET login = %s WHERE user_id = %s", (old, who.user.id))
        beside = await grants.create(second.id, who.user.id)
        assert (beside.login, beside.uid) == (old, before.uid), "one name on all machines"
        for grant in (before, beside):
            await grants.revoke(grant.id)
            await world.grant_at_rest(grant.id)
        after = await asyncio.gather(*(grants.create(machine.id, who.user.id) for machine in (first, second)))
        assert {grant.uid for grant in after} == {before.uid}, "files keep their owner"
        (login,) = {grant.login for grant in after}
        assert login.startswith("u-daemon")
