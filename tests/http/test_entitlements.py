"""A tenant that is not entitled to an app may take apart what runs of it, and nothing else."""

import secrets
from collections.abc import Awaitable

import pytest

from gpuaas_contract.artifacts import Delivery, DeliveryStatus
from gpuaas_contract.identity import Role
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import OperationError, OperationState
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ForbiddenError, NotEntitledError, NotFoundError
from gpuaas_sdk.registry import RegistryError
from gpuaas_stack.settings import Settings
from tests.http.test_catalogue import person
from tests.http.test_external import make as external
from tests.support.artifacts import promoted, signing_key
from tests.support.database import audited, connect
from tests.support.leases import HeldLease
from tests.support.lifecycle import Echo, manifest
from tests.support.world import World, make_key


async def withdraw(world: World) -> None:
    (entitlement,) = await world.admin.entitlements.list(tenant_id=world.tenant.id, app_slug=world.app_slug).all()
    await world.admin.entitlements.revoke(entitlement.id)


async def claim(world: World, instance_id: str, kind: str) -> HeldLease:
    listed = world.controller.operations.list(instance_id=instance_id, state=OperationState.PENDING)
    (operation_id,) = [operation.id async for operation in listed if operation.kind == kind]
    token = (await world.controller.operations.claim(operation_id, "test")).fencing_token
    return HeldLease(world.controller, instance_id, operation_id, token)


async def test_an_account_is_bound_only_to_an_app_that_its_tenant_has(world: World, settings: Settings) -> None:
    admin, public = world.admin, make_key()[1]
    hidden = f"hidden-{secrets.token_hex(3)}"
    await admin.app_versions.publish(manifest(hidden))
    async with person(admin, Role.PROJECT_ADMIN, project_id=world.project.id) as member:
        for slug in (hidden, "there-is-no-such-app"):
            with pytest.raises(NotFoundError, match="there is no app"):
                await member.service_accounts.create(world.project.id, "spy", public, app_slug=slug)
        me = (await member.principal()).id
        assert len(audited(settings, "create_service_account", me, "denied")) == 2
    for where in ((world.project.id, None), (None, world.tenant.id)):
        with pytest.raises(NotEntitledError) as refused:
            await admin.service_accounts.create(where[0], "spy", public, tenant_id=where[1], app_slug=hidden)
        assert refused.value.allowed_actions[0].action == "grant_entitlement"
    names = [account.name async for account in admin.service_accounts.list(project_id=world.project.id)]
    assert "spy" not in names


async def test_withdrawing_leaves_the_controller_nothing_but_the_teardown(world: World) -> None:
    admin, controller = world.admin, world.controller
    machine = await external(world)
    artifact = await promoted(admin, b"what the app is made of", app_slug=world.app_slug)
    instance = await world.deploy(head=machine)
    deploy = await claim(world, instance.id, "deploy")

    async def bring(lease: HeldLease) -> Delivery:
        operation_id, token = lease.both
        work = controller.operations
        return await work.deliver(operation_id, token, allocation_id=machine.id, digest=artifact.digest)

    brought = await bring(deploy)
    assert brought.status == DeliveryStatus.TO_COPY
    assert brought.source is not None
    blob = (brought.source.repository, brought.source.digest)
    assert await controller.registry.size(*blob)
    unused = await admin.app_versions.publish(manifest(world.app_slug, "7.0.0"))

    await withdraw(world)
    # The lease that it holds is for a deploy, so nothing more is brought anywhere.
    with pytest.raises(NotEntitledError):
        await bring(deploy)
    with pytest.raises(RegistryError, match="may not"):
        await controller.registry.size(*blob)
    assert [app.slug async for app in controller.apps.list()] == []
    for hidden in (
        controller.apps.versions(world.app_slug).all(),
        controller.app_versions.get(world.app_slug, "7.0.0"),
        controller.app_versions.get(world.app_slug),
        controller.app_versions.get_by_id(unused.id),
    ):
        with pytest.raises(NotFoundError):
            await hidden
    # What its instance has is what it works by.
    assert (await controller.app_versions.get(world.app_slug, instance.versions.app)).app_slug == world.app_slug
    error = OperationError(code="given_up", detail="no more artifacts", retryable=True)
    await controller.operations.fail(*deploy.both, error)
    with pytest.raises(NotEntitledError):
        await admin.operations.retry(deploy.operation_id)

    await admin.instances.request(instance.id, "decommission")
    ending = await claim(world, instance.id, "decommission")
    assert (await bring(ending)).status == DeliveryStatus.TO_COPY
    assert await controller.registry.size(*blob)
    members = [member.id async for member in controller.instances.members(instance.id)]
    gone = dict.fromkeys(members, MemberStatus.REMOVED)
    await controller.operations.complete(*ending.both, member_statuses=gone)
    with pytest.raises(RegistryError, match="may not"):
        await controller.registry.size(*blob)
    with pytest.raises(NotFoundError):
        await controller.app_versions.get(world.app_slug, instance.versions.app)


async def test_what_brings_the_app_to_a_machine_is_refused_and_the_rest_goes_on(world: World) -> None:
    echo = await Echo.deployed(world, await world.allocation("tail"), head=await world.allocation("head"))
    await world.admin.app_versions.publish(manifest(world.app_slug, "1.2.0"))
    spare = await world.allocation("spare")
    (tail,) = await echo.tails()
    await withdraw(world)
    async with person(world.admin, Role.PROJECT_ADMIN, project_id=world.project.id) as owner:
        for refused in (
            owner.instances.request(echo.id, "upgrade", input={"version": "1.2.0"}),
            owner.instances.request(echo.id, "replace", member_id=tail.id, input={"allocation_id": spare.id}),
            owner.instances.add_members(echo.id, "tail", [spare.id]),
        ):
            # They see the instance, so they may know why.
            with pytest.raises(NotEntitledError):
                await refused
        for kind in ("restart", "stop", "start", "configure"):
            await owner.instances.request(echo.id, kind, input={"inputs": {}} if kind == "configure" else {})
            await echo.controller.run_all()
        await owner.instances.request(echo.id, "remove", member_id=tail.id)
        await echo.controller.run_all()
        await owner.instances.request(echo.id, "decommission")
        await echo.controller.run_all()
    assert await echo.status() == "decommissioned"


async def test_an_account_from_before_reads_and_pulls_nothing(world: World, settings: Settings) -> None:
    """Made by a version of the platform that did not look at entitlements, as it lies in the database."""
    hidden = f"hidden-{secrets.token_hex(3)}"
    version = await world.admin.app_versions.publish(manifest(hidden))
    artifact = await promoted(world.admin, b"somebody else's software", app_slug=hidden)
    assert (await world.controller.app_versions.get(world.app_slug)).app_slug == world.app_slug
    with connect(settings) as connection:
        sql = "UPDATE service_accounts SET app_slug = %s WHERE id = %s"
        connection.execute(sql, (hidden, world.account.id))
    for unseen in (
        world.controller.app_versions.get(hidden),
        world.controller.app_versions.get_by_id(version.id),
        world.controller.apps.versions(hidden).all(),
        world.controller.artifacts.get(artifact.id),
    ):
        with pytest.raises(NotFoundError):
            await unseen
    with pytest.raises(RegistryError, match="may not"):
        await world.controller.registry.size(artifact.repository, artifact.content_digest)


async def test_artifacts_and_keys_of_an_unseen_app_are_not_there(world: World) -> None:
    admin, slug = world.admin, world.app_slug
    artifact = await promoted(admin, b"of the app", app_slug=slug)
    (key,) = await admin.trusted_keys.list(app_slug=slug).all()
    far = await admin.tenants.create(f"far-{secrets.token_hex(3)}")
    public = signing_key().public

    def asks(client: GpuaasClient) -> list[Awaitable[object]]:
        return [
            client.artifacts.get(artifact.id),
            client.artifacts.list(app_slug=slug).all(),
            client.artifacts.verify(artifact.id),
            client.artifacts.promote(artifact.id),
            client.artifacts.retire(artifact.id),
            client.artifacts.delete(artifact.id),
            client.trusted_keys.get(key.id),
            client.trusted_keys.list(app_slug=slug).all(),
            client.trusted_keys.add("own", public, app_slug=slug),
            client.trusted_keys.delete(key.id),
        ]

    async with person(admin, Role.TENANT_ADMIN, tenant_id=far.id) as stranger:
        for asked in asks(stranger):
            with pytest.raises(NotFoundError):
                await asked
    async with person(admin, Role.TENANT_ADMIN, tenant_id=world.tenant.id) as entitled:
        for asked in asks(entitled):
            with pytest.raises(ForbiddenError):
                await asked
