"""The catalogue: who publishes what, how versions end, and who may have them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuaas_contract.catalogue import AppVersionStatus
from gpuaas_contract.identity import Role
from gpuaas_contract.instances import InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest, manifest_schema
from gpuaas_contract.problems import Code
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    NameTakenError,
    NotEntitledError,
    NotFoundError,
)
from tests.support.world import MANIFEST, World

PASSWORD = "a long enough password"


@asynccontextmanager
async def person(admin: GpuaasClient, role: Role, **where: str) -> AsyncIterator[GpuaasClient]:
    name = "-".join([role.value.replace("_", "-"), *where.values()])[-40:].lstrip("-_")
    user = await admin.users.create(f"{name}@example.com", PASSWORD)
    await admin.memberships.create(user.id, role, **where)
    async with GpuaasClient(admin.api_url, PasswordCredentials(user.email, PASSWORD)) as client:
        yield client


def manifest(slug: str, **changes: Any) -> Manifest:
    return Manifest.model_validate({**MANIFEST, "slug": slug, **changes})


async def deploy(world: World, by: GpuaasClient, name: str, version: str | None = None) -> Any:
    head = await world.allocation(name)
    placement = [Placement(component_key="head", allocation_id=head.id)]
    return await by.instances.deploy(
        InstanceDeploy(
            project_id=world.project.id, app_slug=world.app_slug, version=version, name=name, placement_intent=placement
        )
    )


async def test_a_publisher_has_its_own_apps_and_no_others(world: World) -> None:
    admin, own = world.admin, f"own-{world.app_slug}"
    with pytest.raises(InvalidRequestError, match="needs app_slug"):
        await admin.memberships.create(world.account.id, Role.APP_PUBLISHER)
    async with person(admin, Role.APP_PUBLISHER, app_slug=own) as publisher:
        version = await publisher.app_versions.publish(manifest(own))
        assert [app.slug async for app in publisher.apps.list()] == [own]
        with pytest.raises(ForbiddenError):
            await publisher.app_versions.publish(manifest(world.app_slug, version="2.0.0"))
        other = await admin.app_versions.get(world.app_slug)
        with pytest.raises(NotFoundError):
            await publisher.app_versions.retire(other.id)
        with pytest.raises(NotFoundError):
            await publisher.app_versions.get(world.app_slug)
        # Somebody else's app must look like one that does not exist.
        with pytest.raises(NotFoundError):
            await publisher.entitlements.grant(world.tenant.id, world.app_slug)
        granted = await publisher.entitlements.grant(world.tenant.id, own)
        assert [found.id async for found in publisher.entitlements.list()] == [granted.id]
        with pytest.raises(NameTakenError):
            await publisher.entitlements.grant(world.tenant.id, own)
        assert (await publisher.app_versions.deprecate(version.id, reason="old")).status == "deprecated"
        await publisher.entitlements.revoke(granted.id)
    async with person(admin, Role.PROJECT_ADMIN, project_id=world.project.id) as someone:
        with pytest.raises(ForbiddenError):
            await someone.app_versions.publish(manifest(world.app_slug, version="2.0.0"))
        with pytest.raises(ForbiddenError):
            await someone.app_versions.deprecate(other.id)
        with pytest.raises(ForbiddenError):
            await someone.entitlements.grant(world.tenant.id, world.app_slug)


async def test_versions_end_and_what_runs_goes_on(world: World) -> None:
    admin, versions = world.admin, world.admin.app_versions
    first = await versions.get(world.app_slug)
    second = await versions.publish(manifest(world.app_slug, version="1.1.0"))
    assert (await versions.get(world.app_slug)).id == second.id
    await versions.deprecate(second.id, reason="1.0.0 is quieter")
    assert (await versions.get(world.app_slug)).id == first.id
    running = await deploy(world, admin, "on-purpose", version="1.1.0")
    assert (running.versions.app_status, running.versions.app_status_reason) == ("deprecated", "1.0.0 is quieter")
    assert (await deploy(world, admin, "latest")).versions.app == "1.0.0"
    assert (await versions.retire(second.id)).status == AppVersionStatus.RETIRED
    with pytest.raises(InvalidStateError) as refused:
        await deploy(world, admin, "too-late", version="1.1.0")
    assert refused.value.code == Code.VERSION_RETIRED
    still = await admin.instances.get(running.id)
    assert (still.status, still.versions.app_status) == (running.status, "retired")
    for end in (versions.deprecate, versions.retire):
        with pytest.raises(ConflictError):
            await end(second.id)
    await versions.deprecate(first.id)
    with pytest.raises(NotFoundError):
        await deploy(world, admin, "none-left")
    listed = [(v.version, v.status) async for v in admin.apps.versions(world.app_slug)]
    assert listed == [("1.0.0", "deprecated"), ("1.1.0", "retired")]
    (app,) = [app async for app in admin.apps.list() if app.slug == world.app_slug]
    assert (app.latest_version, app.status) == ("1.0.0", "deprecated")


async def test_a_tenant_has_what_it_is_entitled_to(world: World) -> None:
    admin = world.admin
    hidden = f"hidden-{world.app_slug}"
    await admin.app_versions.publish(manifest(hidden))
    async with person(admin, Role.PROJECT_ADMIN, project_id=world.project.id) as member:
        assert [app.slug async for app in member.apps.list()] == [world.app_slug]
        for asking in (member.app_versions.get(hidden), member.apps.versions(hidden).all()):
            with pytest.raises(NotFoundError):
                await asking
        running = await deploy(world, member, "first")
        (entitlement,) = [found async for found in member.entitlements.list()]
        with pytest.raises(ForbiddenError):
            await member.entitlements.revoke(entitlement.id)
        await admin.entitlements.revoke(entitlement.id)
        assert [app.slug async for app in member.apps.list()] == []
        with pytest.raises(NotFoundError):
            await member.app_versions.get(world.app_slug)
        with pytest.raises(NotFoundError):
            await deploy(world, member, "second")
        # What runs stays, and its controller can still read what it works by.
        assert (await member.instances.get(running.id)).id == running.id
        assert (await world.controller.app_versions.get(world.app_slug)).app_slug == world.app_slug
        await member.instances.request(running.id, "decommission")
    with pytest.raises(NotEntitledError) as refused:
        await deploy(world, admin, "third")
    assert refused.value.allowed_actions[0].action == "grant_entitlement"
    assert (await admin.entitlements.grant(world.tenant.id, world.app_slug)).tenant_id == world.tenant.id
    with pytest.raises(NotFoundError):
        await admin.entitlements.grant(world.tenant.id, "nothing-of-the-kind")


async def test_hostile_manifests_are_refused_by_their_place(world: World) -> None:
    """Named as a publisher would: each with a pointer, all at once, and nothing is kept."""
    admin, slug = world.admin, f"hostile-{world.app_slug}"
    bad = {
        "version": "9.0.0",
        "inputs": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a+)+b"}}},
        "modes": [{"key": "m", "title": "M", "actions": ["fly"]}],
        "operations": [*MANIFEST["operations"], {"kind": "stop", "title": "Stop", "component": "tail"}],
    }
    with pytest.raises(InvalidRequestError) as refused:
        await admin.app_versions.publish(manifest(slug, **bad))
    assert refused.value.code == Code.MANIFEST_INVALID
    assert [error.pointer for error in refused.value.errors] == [
        "/manifest/operations/3/component",
        "/manifest/modes/0/actions/0",
        "/manifest/inputs/properties/a/pattern",
    ]
    large = {"type": "object", "properties": {f"p{n}": {"title": "x" * 1000} for n in range(100)}}
    with pytest.raises(InvalidRequestError, match="65536 bytes"):
        await admin.app_versions.publish(manifest(slug, inputs=large))
    with pytest.raises(NotFoundError):
        await admin.app_versions.get(slug)


async def test_a_catastrophic_pattern_costs_nothing(world: World) -> None:
    """With a backtracking engine, this text would keep the platform busy for years."""
    pattern = "^(([a-z])+.)+[A-Z]([a-z])+$"
    inputs = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    await world.admin.app_versions.publish(manifest(world.app_slug, version="1.2.0", inputs=inputs))
    head = await world.allocation()
    async with asyncio.timeout(60):
        with pytest.raises(InvalidRequestError, match="does not match"):
            await world.deploy(head=head, a="a" * 50_000)
    with pytest.raises(InvalidRequestError, match="65536 bytes"):
        await world.deploy(head=head, a="a" * 70_000)


async def test_the_schema_of_a_manifest_is_published(world: World) -> None:
    assert await world.controller.apps.manifest_schema() == manifest_schema()
