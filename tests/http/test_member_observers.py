"""Looking at the machines of all members under an operation's lease: never as root, and no longer than the lease."""

import httpx
import pytest

from gpuaas_contract.access import OBSERVER_LOGIN
from gpuaas_contract.allocations import Allocation
from gpuaas_contract.instances import InstanceDeploy, Placement
from gpuaas_sdk.errors import StaleLeaseError
from gpuaas_stack.settings import Settings
from tests.http.test_external import make as external
from tests.http.test_lease_doors import PUBLIC_KEY, principals_of, told, until_told
from tests.http.test_reconcile import is_cut
from tests.support.database import connect
from tests.support.leases import HeldLease, hold_lease
from tests.support.world import World


async def hold_deploy(world: World, instance_id: str) -> HeldLease:
    operations = world.controller.operations
    (deploy,) = [op async for op in operations.list(instance_id=instance_id) if op.kind == "deploy"]
    claim = await operations.claim(deploy.id, "test")
    return HeldLease(world.controller, instance_id, deploy.id, claim.fencing_token)


async def deployed(world: World) -> tuple[Allocation, Allocation, HeldLease]:
    one, two = await world.allocation("one"), await world.allocation("two")
    await world.deploy(head=await world.allocation("other"), name="other")
    instance = await world.deploy(two, head=one)
    return one, two, await hold_deploy(world, instance.id)


async def test_a_deploy_changes_its_own_machine_and_looks_at_those_of_all_members(
    world: World, settings: Settings
) -> None:
    one, two, lease = await deployed(world)
    operations = lease.client.operations
    root = await operations.access(*lease.both, PUBLIC_KEY)
    assert [machine.allocation_id for machine in root.machines] == [one.id]
    grant = await operations.access(*lease.both, PUBLIC_KEY, observer=True)
    assert (grant.login, grant.left_out) == (OBSERVER_LOGIN, [])
    assert {machine.allocation_id for machine in grant.machines} == {one.id, two.id}
    assert all(machine.closed_at_end for machine in grant.machines)
    holder = f"{lease.operation_id}/{lease.fencing_token}"
    assert principals_of(root.certificate) == [holder]
    assert principals_of(grant.certificate) == [f"{holder}_observer"], "no certificate is good for the other's user"
    look = {OBSERVER_LOGIN: [f"{holder}_observer"]}
    assert told(world) == {one.id: {"root": [holder], **look}, two.id: look}
    with connect(settings) as connection:
        query = "SELECT detail FROM audit_entries WHERE action = 'access.grant' AND principal_id = %s ORDER BY id"
        asked = [row[0] for row in connection.execute(query, (world.account.id,)).fetchall()]
    assert [(each["grant"], each["login"]) for each in asked] == [(root.id, "root"), (grant.id, OBSERVER_LOGIN)]
    assert sorted(asked[-1]["machines"]) == sorted([one.id, two.id])

    await operations.complete(*lease.both)
    assert is_cut(settings, grant.id)
    await until_told(world, {}, "both are shut out with the operation")
    with pytest.raises(StaleLeaseError):
        await operations.access(*lease.both, PUBLIC_KEY, observer=True)


async def test_a_successor_looks_with_a_certificate_of_its_own_and_its_predecessors_opens_nothing(world: World) -> None:
    one, two, first = await deployed(world)
    await first.client.operations.access(*first.both, PUBLIC_KEY, observer=True)
    second = await first.claim_again()
    await until_told(world, {}, "the lease was given back")
    await second.client.operations.access(*second.both, PUBLIC_KEY, observer=True)
    look = {OBSERVER_LOGIN: [f"{second.operation_id}/{second.fencing_token}_observer"]}
    assert told(world) == {one.id: look, two.id: look}
    with pytest.raises(StaleLeaseError):
        await first.client.operations.access(*first.both, PUBLIC_KEY, observer=True)
    await world.admin.service_accounts.update(world.account.id, disabled=True)
    await until_told(world, {}, "an account that is disabled looks no more")
    await world.admin.service_accounts.update(world.account.id, disabled=False)


async def test_an_external_machine_is_left_out_with_the_reason(world: World) -> None:
    one, lab = await world.allocation("one"), await external(world)
    placements = [("head", one.id), ("tail", lab.id)]
    body = InstanceDeploy(
        project_id=world.project.id,
        app_slug=world.app_slug,
        name="greeter",
        placement_intent=[Placement(component_key=key, allocation_id=id) for key, id in placements],
    )
    instance = await world.admin.instances.deploy(body)
    lease = await hold_deploy(world, instance.id)
    watch = await world.controller.reconcile_leases.claim(instance.id, "observer")
    for grant in (
        await lease.client.operations.access(*lease.both, PUBLIC_KEY, observer=True),
        await world.controller.reconcile_leases.access(instance.id, watch.fencing_token, PUBLIC_KEY),
    ):
        assert [machine.allocation_id for machine in grant.machines] == [one.id]
        (left_out,) = grant.left_out
        assert left_out.allocation_id == lab.id
        assert left_out.reason.startswith(f"{lab.name} is an external machine and has no observer")


async def test_a_credential_that_was_chosen_is_for_operations_and_an_observer_has_its_certificate(world: World) -> None:
    chosen = await world.admin.credentials.create(world.project.id, "chosen")
    lease = await hold_lease(world, access=chosen)
    grant = await lease.client.operations.access(*lease.both, PUBLIC_KEY, observer=True)
    assert [(machine.credential_id, machine.closed_at_end) for machine in grant.machines] == [(None, True)]
    assert principals_of(grant.certificate) == [f"{lease.operation_id}/{lease.fencing_token}_observer"]


@pytest.mark.parametrize("wrong", ["maybe", "", 7, [], None])
async def test_a_wish_that_is_neither_yes_nor_no_is_refused(world: World, wrong: object) -> None:
    _, _, lease = await deployed(world)
    headers = {"Authorization": f"Bearer {await lease.client.token()}"}
    body = {"fencing_token": lease.fencing_token, "public_key": PUBLIC_KEY, "observer": wrong}
    async with httpx.AsyncClient(base_url=lease.client.api_url, headers=headers, timeout=60) as http:
        refused = await http.post(f"/v1/operations/{lease.operation_id}/access", json=body)
    assert refused.status_code == 422, refused.text
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/observer"]
    assert told(world) == {}
