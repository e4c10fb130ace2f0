"""A token for the registry is worth what its holder may do at that moment: a right that was withdrawn ends it."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from gpuaas_contract.artifacts import Artifact
from gpuaas_contract.identity import Role
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.http.test_entitlements import withdraw
from tests.support.artifacts import push
from tests.support.processes import ApiProcess
from tests.support.services import admin_credentials
from tests.support.world import World

PASSWORD = "a password of a tester"
IMMEDIATE_SECONDS = 20
"""About a second on a quiet machine. A token by itself is good for two minutes."""
LARGE = 64 << 20
"""More than all buffers on the way hold."""


@dataclass
class Reader:
    """Somebody with a token that reads a repository."""

    url: str
    token: str

    async def status(self, authorization: str | None = None) -> int:
        # Longer than the guard itself waits for the platform.
        async with httpx.AsyncClient(timeout=60) as http:
            shown = {"Authorization": authorization or f"Bearer {self.token}"}
            return (await http.head(self.url, headers=shown)).status_code

    async def is_refused(self, world: World) -> None:
        async def refused() -> bool:
            status = await self.status()
            assert status in {200, 401}
            return status == 401

        await world.until(refused, "the registry refuses the token", IMMEDIATE_SECONDS)


async def reader(client: GpuaasClient, artifact: Artifact) -> Reader:
    registry = (await client.registry.get()).url
    token = (await client.registry.token(artifact.repository)).token
    found = Reader(f"{registry}/v2/{artifact.repository}/blobs/{artifact.content_digest}", token)
    assert await found.status() == 200
    return found


async def by_entitlement(world: World) -> tuple[Reader, Awaitable[object]]:
    artifact = await push(world.admin, b"of the app", app_slug=world.app_slug)
    return await reader(world.controller, artifact), withdraw(world)


async def by_account(world: World) -> tuple[Reader, Awaitable[object]]:
    artifact = await push(world.admin, b"of the app", app_slug=world.app_slug)
    ended = world.admin.service_accounts.update(world.account.id, disabled=True)
    return await reader(world.controller, artifact), ended


async def by_person(
    world: World, end: Callable[[str, str, GpuaasClient], Awaitable[object]]
) -> tuple[Reader, Awaitable[object]]:
    artifact = await push(world.admin, b"of the project", project_id=world.project.id)
    user = await world.admin.users.create(f"reader-{secrets.token_hex(4)}@example.com", PASSWORD)
    role = await world.admin.memberships.create(user.id, Role.PROJECT_ADMIN, project_id=world.project.id)
    client = GpuaasClient(world.admin.api_url, PasswordCredentials(user.email, PASSWORD))

    async def ended() -> None:
        async with client:
            await end(user.id, role.id, client)

    return await reader(client, artifact), ended()


async def by_role(world: World) -> tuple[Reader, Awaitable[object]]:
    return await by_person(world, lambda _user, role, _client: world.admin.memberships.delete(role))


async def by_disabling(world: World) -> tuple[Reader, Awaitable[object]]:
    return await by_person(world, lambda user, _role, _client: world.admin.users.update(user, disabled=True))


async def by_log_out(world: World) -> tuple[Reader, Awaitable[object]]:
    return await by_person(world, lambda _user, _role, client: client.sessions.end_current())


@pytest.mark.parametrize("made", [by_entitlement, by_account, by_role, by_disabling, by_log_out])
async def test_a_token_ends_with_the_right_behind_it(
    world: World, made: Callable[[World], Awaitable[tuple[Reader, Awaitable[object]]]]
) -> None:
    holder, ended = await made(world)
    await ended
    await holder.is_refused(world)
    # However it is spelled.
    assert await holder.status(f"bEARER {holder.token}") == 401
    assert await holder.status(f"Bearer {holder.token}x") == 401


async def test_a_download_is_cut_when_the_right_ends(world: World) -> None:
    artifact = await push(world.admin, os.urandom(1 << 20) * (LARGE >> 20), app_slug=world.app_slug)
    found = await reader(world.controller, artifact)
    async with httpx.AsyncClient(timeout=60) as http:
        shown = {"Authorization": f"Bearer {found.token}"}
        async with http.stream("GET", found.url, headers=shown) as answer:
            pieces = answer.aiter_raw(1 << 16)
            received = len(await anext(pieces))
            await withdraw(world)
            await found.is_refused(world)

            async def go_on() -> None:
                nonlocal received
                async for piece in pieces:
                    received += len(piece)
                    # As slow as a far client, so that it is under way when the platform is asked again.
                    await asyncio.sleep(0.01)

            with pytest.raises(httpx.TransportError):
                await go_on()
            assert received < LARGE


async def test_a_download_goes_on_while_the_right_stands(world: World) -> None:
    """For longer than answers of the platform count, and past a short absence of it."""
    artifact = await push(world.admin, os.urandom(1 << 20) * (LARGE >> 20), app_slug=world.app_slug)
    found = await reader(world.controller, artifact)
    began, received = time.monotonic(), 0
    async with httpx.AsyncClient(timeout=60) as http:
        shown = {"Authorization": f"Bearer {found.token}"}
        async with http.stream("GET", found.url, headers=shown) as answer:
            async for piece in answer.aiter_raw(1 << 20):
                received += len(piece)
                await asyncio.sleep(0.05)
    assert time.monotonic() - began > 2
    assert received == LARGE


@asynccontextmanager
async def platform_that_goes(settings: Settings) -> AsyncIterator[tuple[ApiProcess, GpuaasClient]]:
    process = ApiProcess(settings)
    with process.serving() as url:
        async with GpuaasClient(url, PasswordCredentials(*admin_credentials(settings))) as client:
            yield process, client


async def test_nothing_is_begun_while_the_platform_cannot_be_asked(settings: Settings) -> None:
    async with platform_that_goes(settings) as (process, client):
        artifact = await push(client, b"there", app_slug=f"away-{secrets.token_hex(4)}")
        found = await reader(client, artifact)
        os.kill(process.pid, signal.SIGSTOP)
        try:

            async def unavailable() -> bool:
                return await found.status() == 503

            await World.until(unavailable, "the guard says that nobody can say whether the token is good")
        finally:
            os.kill(process.pid, signal.SIGCONT)

        async def is_back() -> bool:
            return await found.status() == 200

        await World.until(is_back, "the token is good again")


async def test_who_asks_about_a_token_learns_nothing_else(world: World, settings: Settings) -> None:
    artifact = await push(world.admin, b"of the app", app_slug=world.app_slug)
    found = await reader(world.controller, artifact)
    access = (await world.controller.fetch_token()).access_token
    async with httpx.AsyncClient(base_url=settings.api_url) as http:

        async def active(authorization: str | None) -> bool:
            headers = {} if authorization is None else {"Authorization": authorization}
            answer = await http.get("/v1/registry/check", headers=headers)
            assert answer.status_code == 200
            assert answer.json().keys() == {"active"}
            return bool(answer.json()["active"])

        assert await active(f"Bearer {found.token}")
        head, claims, signature = found.token.split(".")
        forged = [f"{head}.{claims}.{signature[::-1]}", f"{head}.{claims}.", f"{head}..{signature}", "x", "a.b.c"]
        for wrong in (None, f"Basic {found.token}", f"Bearer {access}", *(f"Bearer {one}" for one in forged)):
            assert not await active(wrong)
        await world.admin.service_accounts.update(world.account.id, disabled=True)
        assert not await active(f"Bearer {found.token}")
