"""Wrapping tokens: for the holder of a lease, once, and every use in the audit trail."""

import asyncio

import pytest

from gpuaas_contract.identity import Role
from gpuaas_contract.problems import Code
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, ServiceAccountCredentials
from gpuaas_sdk.errors import (
    AlreadyDeliveredError,
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    NotFoundError,
    StaleLeaseError,
)
from gpuaas_sdk.secret_value import SecretValue
from gpuaas_stack.settings import Settings
from tests.support.database import audited
from tests.support.identity import PASSWORD, unique
from tests.support.leases import hold_lease
from tests.support.openbao import Vault
from tests.support.ssh_keys import public_of
from tests.support.world import World, make_key


async def test_a_wrapping_token_works_once_and_the_second_use_is_audited(world: World, settings: Settings) -> None:
    made = await world.admin.credentials.create(world.project.id, "once")
    lease = await hold_lease(world, access=made)
    delivery = await world.controller.credentials.deliver(made.id, *lease.both)
    await lease.unwrap(delivery)
    with pytest.raises(AlreadyDeliveredError) as refused:
        await lease.unwrap(delivery)
    assert refused.value.code == Code.DELIVERY_USED
    with pytest.raises(AlreadyDeliveredError) as refused:
        await world.controller.credentials.deliver(made.id, *lease.both)
    assert refused.value.code == Code.ALREADY_DELIVERED
    account = world.account.id
    assert len(audited(settings, "secret.deliver", account)) == 1
    assert len(audited(settings, "secret.unwrap", account)) == 1
    assert len(audited(settings, "secret.unwrap", account, "denied")) == 1
    lease = await lease.claim_again()
    assert public_of(await lease.credential(made.id)) == made.versions[0].public_key


async def test_eight_unwrap_at_once_and_one_gets_it(world: World) -> None:
    made = await world.admin.credentials.create(world.project.id, "crowd")
    lease = await hold_lease(world, access=made)
    delivery = await world.controller.credentials.deliver(made.id, *lease.both)
    answers = await asyncio.gather(*(lease.unwrap(delivery) for _ in range(8)), return_exceptions=True)
    assert len([answer for answer in answers if isinstance(answer, SecretValue)]) == 1
    assert {type(answer) for answer in answers} == {SecretValue, AlreadyDeliveredError}


async def test_asking_again_makes_the_token_before_it_void(world: World) -> None:
    made = await world.admin.credentials.create(world.project.id, "twice")
    lease = await hold_lease(world, access=made)
    first = await world.controller.credentials.deliver(made.id, *lease.both)
    second = await world.controller.credentials.deliver(made.id, *lease.both)
    with pytest.raises(InvalidStateError) as refused:
        await lease.unwrap(first)
    assert refused.value.code == Code.DELIVERY_EXPIRED
    await lease.unwrap(second)


async def test_a_token_that_openbao_took_back_is_over(world: World, vault: Vault) -> None:
    """As after its minute: nothing is lost, the lease asks again."""
    made = await world.admin.credentials.create(world.project.id, "late")
    lease = await hold_lease(world, access=made)
    delivery = await world.controller.credentials.deliver(made.id, *lease.both)
    vault.call("POST", "auth/token/revoke", json={"token": delivery.wrapping_token}).raise_for_status()
    with pytest.raises(InvalidStateError) as refused:
        await lease.unwrap(delivery)
    assert refused.value.code == Code.DELIVERY_EXPIRED
    await lease.credential(made.id)


async def test_only_the_holder_of_a_live_lease_of_the_same_project(world: World, settings: Settings) -> None:
    made = await world.admin.credentials.create(world.project.id, "mine")
    lease = await hold_lease(world, access=made)
    stale = lease.both
    wrapped_before = await world.controller.credentials.deliver(made.id, *lease.both)
    lease = await lease.claim_again()
    with pytest.raises(StaleLeaseError):
        await world.controller.credentials.deliver(made.id, *stale)
    with pytest.raises(StaleLeaseError):
        await lease.unwrap(wrapped_before)
    # Another project of the same tenant, by an account that may work in both.
    other = await world.admin.projects.create(world.tenant.id, unique("other"))
    foreign = await world.admin.credentials.create(other.id, "foreign")
    with pytest.raises(NotFoundError):
        await world.controller.credentials.deliver(foreign.id, *lease.both)
    private, public = make_key()
    both = await world.admin.service_accounts.create(
        None, unique("both"), public, tenant_id=world.tenant.id, app_slug=world.app_slug
    )
    async with GpuaasClient(settings.api_url, ServiceAccountCredentials(both.id, private)) as client:
        with pytest.raises(StaleLeaseError):
            await client.credentials.deliver(made.id, *lease.both)
        delivery = await world.controller.credentials.deliver(made.id, *lease.both)
        assert delivery.wrapping_token is not None
        with pytest.raises(StaleLeaseError):
            await client.secret_deliveries.unwrap(delivery.id, delivery.wrapping_token)
    async with await _admin_of(world, settings) as project_admin:
        for person in (world.admin, project_admin):
            with pytest.raises(ForbiddenError):
                await person.credentials.deliver(made.id, *lease.both)
            with pytest.raises(ForbiddenError):
                await person.secret_deliveries.unwrap(delivery.id, delivery.wrapping_token)
    with pytest.raises(InvalidRequestError) as refused:
        await world.controller.secret_deliveries.unwrap(delivery.id, "s.guessed")
    assert refused.value.code == Code.WRAPPING_TOKEN_INVALID
    assert [error.pointer for error in refused.value.errors] == ["/wrapping_token"]
    await lease.unwrap(delivery)


async def _admin_of(world: World, settings: Settings) -> GpuaasClient:
    user = await world.admin.users.create(f"{unique('admin')}@example.com", PASSWORD)
    await world.admin.memberships.create(user.id, Role.PROJECT_ADMIN, project_id=world.project.id)
    return GpuaasClient(settings.api_url, PasswordCredentials(user.email, PASSWORD))
