"""Machines that a tenant owns itself: for what its projects share, and not for the people of the projects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpuaas_contract.agent_link import CreateSlice
from gpuaas_contract.changes import START
from gpuaas_contract.identity import Role
from gpuaas_contract.usage import UsageKind
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, ServiceAccountCredentials
from tests.http.test_allocation_requests import problem_of
from tests.http.test_machines import refused
from tests.support.world import World, make_key

PASSWORD = "a long enough password"
SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


@asynccontextmanager
async def person(world: World, name: str, role: Role, **where: str) -> AsyncIterator[GpuaasClient]:
    user = await world.admin.users.create(f"{name}-{world.app_slug}@example.com", PASSWORD)
    await world.admin.memberships.create(user.id, role, **where)
    async with GpuaasClient(world.admin.api_url, PasswordCredentials(user.email, PASSWORD)) as client:
        yield client


@pytest.fixture
async def tenant_admin(world: World) -> AsyncIterator[GpuaasClient]:
    async with person(world, "tenant", Role.TENANT_ADMIN, tenant_id=world.tenant.id) as client:
        yield client


async def test_a_tenants_own_machine_lives_beside_those_of_its_projects(
    world: World, tenant_admin: GpuaasClient
) -> None:
    machines, tenant = tenant_admin.allocations, world.tenant.id
    of_project = await world.allocation()
    # The same name: names are unique for each owner.
    made = await machines.create(None, "one", tenant_id=tenant)
    own = await world.at_rest(made.id)
    assert (own.status, own.tenant_id, own.project_id) == ("active", tenant, None)
    assert (of_project.tenant_id, of_project.project_id) == (tenant, world.project.id)
    await refused(machines.create(None, "one", tenant_id=tenant), "name_taken")

    networks = {}
    for task in world.node.taken:
        if isinstance(task.spec, CreateSlice):
            networks[task.spec.allocation_id] = task.spec.network
    mine, theirs = networks[own.id], networks[of_project.id]
    assert (mine.owner_id, theirs.owner_id) == (tenant, world.project.id)
    assert mine.bridge != theirs.bridge
    assert mine.gateway_cidr != theirs.gateway_cidr

    # Certificates come from the owner's own authority.
    grant, other = await machines.access(own.id, SSH_KEY), await machines.access(of_project.id, SSH_KEY)
    assert grant.host_authority != other.host_authority

    assert [found.id for found in await machines.list(tenant_id=tenant).all()] == [own.id]
    assert [found.id for found in await machines.list(project_id=world.project.id).all()] == [of_project.id]
    assert {found.id for found in await machines.list().all()} == {own.id, of_project.id}
    used = await tenant_admin.usage.list(tenant_id=tenant, kind=UsageKind.CHARGED).all()
    assert [(record.allocation_id, record.tenant_id, record.project_id) for record in used] == [(own.id, tenant, None)]

    assert await refused(world.admin.tenants.delete(tenant), "not_empty")
    await machines.resize(own.id, cpus=2)
    assert (await world.at_rest(own.id)).shape.cpus == 2
    await machines.restart(own.id)
    await world.at_rest(own.id)
    await machines.release(own.id)
    assert (await world.at_rest(own.id)).status == "released"
    batch = await machines.create_batch(None, "pool", 2, tenant_id=tenant)
    assert [item.project_id for item in batch.items] == [None, None]


async def test_people_of_a_project_do_not_know_of_it(world: World, tenant_admin: GpuaasClient) -> None:
    machines, tenant = tenant_admin.allocations, world.tenant.id
    own = await world.at_rest((await machines.create(None, "own", tenant_id=tenant)).id)
    async with person(world, "project", Role.PROJECT_ADMIN, project_id=world.project.id) as someone:
        await refused(someone.allocations.create(None, "two", tenant_id=tenant), "forbidden")
        await refused(someone.allocations.list(tenant_id=tenant).all(), "forbidden")
        await refused(someone.usage.list(tenant_id=tenant).all(), "forbidden")
        for call in (
            someone.allocations.get(own.id),
            someone.allocations.timeline(own.id),
            someone.allocations.release(own.id),
            someone.allocations.access(own.id, SSH_KEY),
        ):
            await refused(call, "not_found")
        assert await someone.allocations.list().all() == []
        assert await someone.usage.list().all() == []
        seen = (await someone.changes(since=START, nouns=["allocation"]).page(wait=0)).items
        assert own.id not in {change.resource_id for change in seen}
    told = (await tenant_admin.changes(since=START, nouns=["allocation"], tenant_id=tenant).page(wait=0)).items
    assert {(change.resource_id, change.tenant_id, change.project_id) for change in told} == {(own.id, tenant, None)}
    # In the tenant's own audit trail, of no project.
    trail = await tenant_admin.audit.list(tenant_id=tenant).all()
    created = [entry for entry in trail if entry.action == "allocation.create"]
    assert [(entry.target, entry.project_id) for entry in created] == [(own.id, None)]
    # An app of the project cannot be put on it.
    error = await refused(world.deploy(head=own), "placement_invalid")
    assert f"the project has no allocation '{own.id}'" in error.problem.detail


async def test_a_service_account_of_the_tenant_can_be_given_the_right(world: World) -> None:
    tenant = world.tenant.id
    for role, code in ((Role.TENANT_ADMIN, None), (Role.PROJECT_ADMIN, "forbidden"), (None, "forbidden")):
        private, public = make_key()
        name = f"account-{(role or 'none').replace('_', '-')}"
        account = await world.admin.service_accounts.create(None, name, public, tenant_id=tenant, role=role)
        async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as client:
            asking = client.allocations.create(None, "own", tenant_id=tenant)
            if code is None:
                assert (await asking).tenant_id == tenant
            else:
                await refused(asking, code)


async def test_a_machine_has_exactly_one_owner(world: World) -> None:
    both = {"project_id": world.project.id, "tenant_id": world.tenant.id}
    for owner in ({}, both):
        problem = await problem_of(world, "/v1/allocations", {"name": "one", **owner})
        assert problem["code"] == "invalid_request"
        assert "exactly one of project_id and tenant_id" in problem["detail"] + str(problem["errors"])
    assert await world.admin.allocations.list(project_id=world.project.id).all() == []
