"""Tenants, projects, people and memberships: changing them, ending them, at once everywhere."""

import asyncio

import pytest

from gpuaas_contract.identity import Role, User
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import (
    ForbiddenError,
    InvalidStateError,
    NotEmptyError,
    NotFoundError,
    RevisionMismatchError,
    UnauthenticatedError,
)
from gpuaas_stack.settings import Settings
from tests.support.identity import PASSWORD, status_everywhere, unique
from tests.support.processes import ApiProcess, admin_file, fresh_database
from tests.support.world import World


@pytest.fixture
async def ada(admin: GpuaasClient) -> User:
    return await admin.users.create(f"{unique('ada')}@example.com", PASSWORD)


# Tenants and projects


async def test_titles_change_while_nobody_else_changed_them(admin: GpuaasClient) -> None:
    tenant = await admin.tenants.create(unique("t"))
    project = await admin.projects.create(tenant.id, "first")
    changed = await admin.tenants.update(tenant.id, title="Physics", revision=tenant.revision)
    assert (changed.title, changed.revision, changed.name) == ("Physics", tenant.revision + 1, tenant.name)
    with pytest.raises(RevisionMismatchError):
        await admin.tenants.update(tenant.id, title="Chemistry", revision=tenant.revision)
    renamed = await admin.projects.update(project.id, title="First light", revision=project.revision)
    assert (await admin.projects.get(project.id)) == renamed
    with pytest.raises(RevisionMismatchError):
        await admin.projects.delete(project.id, revision=project.revision)
    with pytest.raises(NotFoundError):
        await admin.projects.update("prj_00000000000000000000000000", title="Nothing")


async def test_a_tenant_and_a_project_end_when_nothing_is_in_them(world: World) -> None:
    admin = world.admin
    allocation = await world.allocation()
    with pytest.raises(NotEmptyError) as refused:
        await admin.projects.delete(world.project.id)
    assert refused.value.problem.context == {"allocations": 1, "service accounts": 1}
    with pytest.raises(NotEmptyError) as refused:
        await admin.tenants.delete(world.tenant.id)
    assert refused.value.problem.context == {"projects": 1}
    await admin.allocations.release(allocation.id)

    async def released() -> bool:
        return (await admin.allocations.get(allocation.id)).status == "released"

    await world.until(released, "the machine is released")
    await admin.service_accounts.delete(world.account.id)
    user = await admin.users.create(f"{unique('bob')}@example.com", PASSWORD)
    await admin.memberships.create(user.id, Role.PROJECT_VIEWER, project_id=world.project.id)
    await admin.projects.delete(world.project.id)
    with pytest.raises(NotFoundError):
        await admin.projects.get(world.project.id)
    for refusal in (
        admin.allocations.create(world.project.id, "late"),
        admin.service_accounts.create(world.project.id, "late"),
        admin.memberships.create(user.id, Role.PROJECT_VIEWER, project_id=world.project.id),
        admin.projects.delete(world.project.id),
    ):
        with pytest.raises(NotFoundError):
            await refusal
    assert [m async for m in admin.memberships.list(user_id=user.id)] == []
    # Its name is free, what was in it stays readable.
    assert (await admin.allocations.get(allocation.id)).status == "released"
    again = await admin.projects.create(world.tenant.id, world.project.name)
    await admin.projects.delete(again.id)
    await admin.tenants.delete(world.tenant.id)
    with pytest.raises(NotFoundError):
        await admin.tenants.get(world.tenant.id)
    await admin.tenants.create(world.tenant.name)


async def test_nothing_slips_into_a_project_that_is_being_deleted(settings: Settings, admin: GpuaasClient) -> None:
    """Either the project is gone, or the machine is in it: never both."""
    for _ in range(6):
        tenant = await admin.tenants.create(unique("t"))
        project = await admin.projects.create(tenant.id, "contested")
        results = await asyncio.gather(
            *(admin.service_accounts.create(project.id, f"a{n}") for n in range(4)),
            admin.projects.delete(project.id),
            return_exceptions=True,
        )
        deleted = not isinstance(results[-1], BaseException)
        made = [result for result in results[:-1] if not isinstance(result, BaseException)]
        assert not (deleted and made)
        assert deleted or made


# People


async def test_disabling_and_deleting_a_user_works_at_once_everywhere(
    settings: Settings, admin: GpuaasClient, ada: User, second_api_url: str
) -> None:
    credentials = PasswordCredentials(ada.email, PASSWORD)
    urls = (settings.api_url, second_api_url)

    async def token() -> str:
        async with GpuaasClient(second_api_url, credentials) as client:
            return (await client.fetch_token()).access_token

    first = await token()
    assert await status_everywhere(first, *urls) == {200}
    disabled = await admin.users.update(ada.id, disabled=True, revision=ada.revision)
    assert disabled.disabled
    assert await status_everywhere(first, *urls) == {401}
    with pytest.raises(UnauthenticatedError):
        await token()
    await admin.users.update(ada.id, disabled=False)
    assert await status_everywhere(first, *urls) == {401}, "what was withdrawn stays so"
    second = await token()
    assert await status_everywhere(second, *urls) == {200}
    await admin.users.delete(ada.id)
    assert await status_everywhere(second, *urls) == {401}
    with pytest.raises(UnauthenticatedError):
        await token()
    with pytest.raises(NotFoundError):
        await admin.users.get(ada.id)
    assert await admin.users.create(ada.email, PASSWORD)


async def test_a_role_counts_and_ends_at_once_everywhere(
    settings: Settings, world: World, ada: User, second_api_url: str
) -> None:
    admin = world.admin
    async with GpuaasClient(second_api_url, PasswordCredentials(ada.email, PASSWORD)) as elsewhere:
        with pytest.raises(NotFoundError):
            await elsewhere.projects.get(world.project.id)
        given = await admin.memberships.create(ada.id, Role.PROJECT_VIEWER, project_id=world.project.id)
        assert (await elsewhere.projects.get(world.project.id)).id == world.project.id
        await admin.memberships.delete(given.id)
        with pytest.raises(NotFoundError):
            await elsewhere.projects.get(world.project.id)
    with pytest.raises(NotFoundError):
        await admin.memberships.delete(given.id)


async def test_memberships_are_seen_by_those_they_concern(settings: Settings, world: World, ada: User) -> None:
    admin = world.admin
    boss = await admin.users.create(f"{unique('boss')}@example.com", PASSWORD)
    hers = await admin.memberships.create(ada.id, Role.PROJECT_MEMBER, project_id=world.project.id)
    his = await admin.memberships.create(boss.id, Role.TENANT_ADMIN, tenant_id=world.tenant.id)
    async with GpuaasClient(settings.api_url, PasswordCredentials(ada.email, PASSWORD)) as client:
        assert [m.id async for m in client.memberships.list()] == [hers.id]
        assert [m.id async for m in client.memberships.list(project_id=world.project.id)] == [hers.id]
        assert [m.id async for m in client.memberships.list(user_id=boss.id)] == []
        with pytest.raises(ForbiddenError):
            await client.memberships.delete(hers.id)
        with pytest.raises(ForbiddenError):
            await client.memberships.delete(his.id)
    async with GpuaasClient(settings.api_url, PasswordCredentials(boss.email, PASSWORD)) as client:
        assert {m.id async for m in client.memberships.list(tenant_id=world.tenant.id)} == {hers.id, his.id}
        (found,) = [m async for m in client.memberships.list(user_id=ada.id)]
        assert (found.id, found.user_email) == (hers.id, ada.email)
        await client.memberships.delete(hers.id, revision=hers.revision)
    platform_role = await admin.memberships.create(boss.id, Role.APP_PUBLISHER, app_slug="echo")
    async with GpuaasClient(settings.api_url, PasswordCredentials(ada.email, PASSWORD)) as client:
        with pytest.raises(NotFoundError):
            await client.memberships.delete(platform_role.id)


async def test_there_is_always_a_platform_admin(settings: Settings) -> None:
    first = ("root@gpuaas.example", "a password that stays")
    with fresh_database(settings) as database, admin_file(settings.state_dir, *first) as file:
        process = ApiProcess(settings, database, bootstrap_admin_file=file, migrate_at_start="true")
        with process.serving() as url:
            async with GpuaasClient(url, PasswordCredentials(*first)) as admin:
                me = (await admin.principal()).id
                (role,) = [m async for m in admin.memberships.list() if m.role == Role.PLATFORM_ADMIN]
                for refusal in (
                    admin.users.update(me, disabled=True),
                    admin.users.delete(me),
                    admin.memberships.delete(role.id),
                ):
                    with pytest.raises(InvalidStateError) as refused:
                        await refusal
                    assert refused.value.code == "last_platform_admin"
                assert (await admin.principal()).id == me
                second = await admin.users.create("second@gpuaas.example", PASSWORD)
                other = await admin.memberships.create(second.id, Role.PLATFORM_ADMIN)
                # Disabled, it cannot act, so it does not count.
                await admin.users.update(second.id, disabled=True)
                with pytest.raises(InvalidStateError):
                    await admin.memberships.delete(role.id)
                await admin.users.update(second.id, disabled=False)
                async with GpuaasClient(url, PasswordCredentials(second.email, PASSWORD)) as peer:
                    # Each removes the other at the same moment: one of them must stay.
                    await peer.principal()
                    results = await asyncio.gather(
                        admin.memberships.delete(other.id), peer.memberships.delete(role.id), return_exceptions=True
                    )
                assert [isinstance(result, BaseException) for result in results].count(True) == 1
