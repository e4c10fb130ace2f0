"""Who may log in under a lease, as the nodes are told: before the holder hears of it, and at once when it is over."""

import asyncio
import secrets

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity

from gpuaas_contract.access import LEASE_CERTIFICATE_SECONDS, OBSERVER_LOGIN
from gpuaas_contract.identity import Role
from gpuaas_sdk.errors import ApiError, NotFoundError, StaleLeaseError
from gpuaas_stack.settings import Settings
from tests.http.test_grants import person
from tests.http.test_nodes import connected, enrolled, status_is
from tests.support.database import connect
from tests.support.leases import hold_lease
from tests.support.world import World

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def principals_of(certificate: str) -> list[str]:
    read = load_ssh_public_identity(certificate.encode())
    assert isinstance(read, SSHCertificate)
    assert read.valid_before - read.valid_after < LEASE_CERTIFICATE_SECONDS + 60, "a clock may be half a minute off"
    return [principal.decode() for principal in read.valid_principals]


def told(world: World) -> dict[str, dict[str, list[str]]]:
    """Who may log in now, as the node was told last."""
    return world.node.leases[-1].machines if world.node.leases else {}


async def until_told(world: World, expected: dict[str, dict[str, list[str]]], what: str) -> None:
    async def is_so() -> bool:
        return told(world) == expected

    await world.until(is_so, what)


async def test_a_node_knows_the_holder_before_it_hears_of_it_and_only_while_the_lease_lasts(world: World) -> None:
    first = await hold_lease(world)
    grant = await first.client.operations.access(*first.both, PUBLIC_KEY)
    (machine,) = grant.machines
    old = f"{first.operation_id}/{first.fencing_token}"
    assert told(world) == {machine.allocation_id: {"root": [old]}}
    assert principals_of(grant.certificate) == [old]
    assert machine.closed_at_end
    asked = len(world.node.leases)
    renewed = await first.client.operations.access(*first.both, PUBLIC_KEY)
    assert principals_of(renewed.certificate) == [old]
    assert len(world.node.leases) == asked, "a renewal costs the node nothing"

    second = await first.claim_again()
    await second.client.operations.access(*second.both, PUBLIC_KEY)
    assert told(world) == {machine.allocation_id: {"root": [f"{second.operation_id}/{second.fencing_token}"]}}
    with pytest.raises(StaleLeaseError):
        await first.client.operations.access(*first.both, PUBLIC_KEY)

    leases = world.controller.reconcile_leases
    watch = await leases.claim(first.instance_id, "observer")
    await leases.access(first.instance_id, watch.fencing_token, PUBLIC_KEY)
    observer = {OBSERVER_LOGIN: [f"{first.instance_id}/{watch.fencing_token}"]}
    await second.client.operations.complete(*second.both)
    await until_told(world, {machine.allocation_id: observer}, "the end of an operation ends nobody else's access")
    await leases.yield_lease(first.instance_id, watch.fencing_token)
    await until_told(world, {}, "nobody is let in any more")


async def test_a_controller_that_is_gone_is_shut_out_when_its_lease_runs_out(world: World, settings: Settings) -> None:
    lease = await hold_lease(world)
    await lease.client.operations.access(*lease.both, PUBLIC_KEY)
    watch = await world.controller.reconcile_leases.claim(lease.instance_id, "observer")
    await world.controller.reconcile_leases.access(lease.instance_id, watch.fencing_token, PUBLIC_KEY)
    assert {login for logins in told(world).values() for login in logins} == {"root", OBSERVER_LOGIN}
    past = "now() - interval '1 second'"
    with connect(settings) as connection:
        connection.execute(
            f"UPDATE operations SET lease_expires_at = {past} WHERE id = %s",
            (lease.operation_id,),
        )
        connection.execute(
            f"UPDATE reconcile_leases SET expires_at = {past} WHERE instance_id = %s",
            (lease.instance_id,),
        )
    await until_told(world, {}, "nobody says anything, and both are shut out")


async def test_an_account_that_is_disabled_is_shut_out(world: World) -> None:
    lease = await hold_lease(world)
    await lease.client.operations.access(*lease.both, PUBLIC_KEY)
    await world.admin.service_accounts.update(world.account.id, disabled=True)
    await until_told(world, {}, "its lease still lasts, and opens nothing")
    await world.admin.service_accounts.update(world.account.id, disabled=False)


async def test_a_node_that_does_not_answer_is_named_and_one_that_comes_back_is_told_anew(world: World) -> None:
    node = await enrolled(world.admin, f"node-{secrets.token_hex(4)}")
    node.silent_about_leases = True
    await world.admin.nodes.cordon(world.node.node_id)
    async with connected(node):
        await status_is(world.admin, node, "ready")
        lease = await hold_lease(world)
        # Not through the client, which would come again.
        headers = {"Authorization": f"Bearer {await lease.client.token()}"}
        async with httpx.AsyncClient(base_url=lease.client.api_url, headers=headers, timeout=60) as http:
            body = {"fencing_token": lease.fencing_token, "public_key": PUBLIC_KEY}
            refused = await http.post(f"/v1/operations/{lease.operation_id}/access", json=body)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert f"has not opened for-greeter for {lease.operation_id}/" in refused.json()["detail"]
    await status_is(world.admin, node, "offline")
    # Nobody gets there anyway: the certificate is for the machines that can be reached.
    grant = await lease.client.operations.access(*lease.both, PUBLIC_KEY)
    node.silent_about_leases = False
    async with connected(node):
        await status_is(world.admin, node, "ready")
        await lease.client.operations.access(*lease.both, PUBLIC_KEY)
        (machine,) = grant.machines
        assert node.leases[-1].machines == {machine.allocation_id: {"root": principals_of(grant.certificate)}}
    await world.admin.nodes.uncordon(world.node.node_id)


async def test_who_administers_a_machine_is_let_in_until_the_role_is_taken(world: World) -> None:
    machine = await world.allocation("own")
    async with person(world, "chief", Role.PROJECT_ADMIN) as chief, person(world, "other", Role.PROJECT_ADMIN) as other:
        access = await chief.client.allocations.access(machine.id, PUBLIC_KEY)
        by_role = f"{chief.user.id}/role"
        assert told(world) == {machine.id: {"gpuaas": [by_role]}}, "before the answer"
        read = load_ssh_public_identity(access.certificate.encode())
        assert isinstance(read, SSHCertificate)
        assert read.valid_principals == [by_role.encode()]
        assert read.key_id.startswith(by_role.encode() + b"/"), "by which the machine knows whose session is whose"
        assert access.machines[0].closed_at_end
        asked = len(world.node.leases)
        await chief.client.allocations.access(machine.id, PUBLIC_KEY)
        assert len(world.node.leases) == asked, "another certificate costs the node nothing"
        lease = await hold_lease(world)
        await lease.client.operations.access(*lease.both, PUBLIC_KEY)
        await other.client.allocations.access(machine.id, PUBLIC_KEY)
        await lease.client.operations.complete(*lease.both)
        both = {"gpuaas": sorted([by_role, f"{other.user.id}/role"])}
        await until_told(world, {machine.id: both}, "a lease that ends takes nobody else's access")

        (role,) = await world.admin.memberships.list(user_id=chief.user.id).all()
        await world.admin.memberships.delete(role.id)
        left = {machine.id: {"gpuaas": [f"{other.user.id}/role"]}}
        await until_told(world, left, "the certificate is still valid, and opens nothing")
        with pytest.raises(NotFoundError):
            await chief.client.allocations.access(machine.id, PUBLIC_KEY)
        assert told(world) == left
        await world.admin.users.update(other.user.id, disabled=True)
        await until_told(world, {}, "a disabled account opens nothing either")


async def test_a_role_that_is_taken_while_access_is_asked_for_gives_none(world: World, settings: Settings) -> None:
    """The policy was asked with the roles of a moment ago; the answer counts only where they still stand."""
    machine = await world.allocation("own")
    async with person(world, "late", Role.PROJECT_ADMIN) as late:
        await late.client.allocations.get(machine.id)
        with connect(settings) as connection, connection.transaction():
            # Taken, and not yet committed: the request has read its roles and waits here.
            connection.execute("DELETE FROM memberships WHERE user_id = %s", (late.user.id,))
            asked = asyncio.create_task(late.client.allocations.access(machine.id, PUBLIC_KEY))
            waiting = (
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM memberships%'"
            )

            async def waits() -> bool:
                with connect(settings) as looking:
                    return looking.execute(waiting).fetchone() is not None

            await world.until(waits, "the request waits for whoever takes the role")
        with pytest.raises(ApiError):
            await asked
    assert told(world) == {}
