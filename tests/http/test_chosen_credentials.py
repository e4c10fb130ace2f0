"""The access credential that a deploy chose: named in the grant, delivered under the lease, and no other one."""

import pytest

from gpuaas_contract.instances import ChosenAccess, InstanceDeploy, Placement
from gpuaas_sdk.errors import ForbiddenError, InvalidRequestError, StaleLeaseError
from gpuaas_stack.settings import Settings
from tests.http.test_external import make as external
from tests.support.database import audited
from tests.support.leases import HeldLease, hold_lease
from tests.support.ssh_keys import public_of
from tests.support.world import World

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


async def test_the_chosen_one_and_no_other(world: World) -> None:
    one, two = await world.allocation("one"), await world.allocation("two")
    chosen = await world.admin.credentials.create(world.project.id, "chosen")
    other = await world.admin.credentials.create(world.project.id, "other")
    placements = [
        Placement(component_key="head", allocation_id=one.id, access=ChosenAccess(credential_id=chosen.id)),
        Placement(component_key="tail", allocation_id=two.id),
    ]
    request = InstanceDeploy(
        project_id=world.project.id, app_slug=world.app_slug, name="greeter", placement_intent=placements
    )
    instance = await world.admin.instances.deploy(request)
    members = {m.component_key: m async for m in world.admin.instances.members(instance.id)}
    assert members["head"].access_credential_id == chosen.id
    (adding,) = [op async for op in world.controller.operations.list(instance_id=instance.id) if op.kind == "add"]
    claim = await world.controller.operations.claim(adding.id, "test")
    lease = HeldLease(world.controller, instance.id, adding.id, claim.fencing_token)
    grant = await world.controller.operations.access(*lease.both, PUBLIC_KEY)
    assert {m.allocation_id: m.credential_id for m in grant.machines} == {one.id: chosen.id, two.id: None}
    assert {m.allocation_id: m.closed_at_end for m in grant.machines} == {one.id: False, two.id: True}
    assert set(world.node.leases[-1].machines) == {two.id}, "a stored key opens the other"
    assert public_of(await lease.credential(chosen.id)) == chosen.versions[0].public_key
    with pytest.raises(ForbiddenError, match="was not chosen"):
        await lease.credential(other.id)
    await world.controller.operations.yield_lease(*lease.both)
    with pytest.raises(StaleLeaseError):
        await lease.credential(chosen.id)

    everywhere = {"access": ChosenAccess(credential_id="crd_none"), "name": "second"}
    with pytest.raises(InvalidRequestError) as refused:
        await world.admin.instances.deploy(request.model_copy(update=everywhere))
    assert "/access" in [error.pointer for error in refused.value.errors]


def _principals(certificate: str) -> str:
    from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity

    found = load_ssh_public_identity(certificate.encode())
    assert isinstance(found, SSHCertificate)
    return " ".join(name.decode() for name in found.valid_principals)


async def test_none_chosen_means_none(world: World, settings: Settings) -> None:
    stored = await world.admin.credentials.create(world.project.id, "stored")
    lease = await hold_lease(world)
    with pytest.raises(ForbiddenError, match="was not chosen"):
        await lease.credential(stored.id)
    assert len(audited(settings, "deliver_credential", world.account.id, "denied")) == 1
    # What was chosen for one instance is not chosen for its neighbour of the same app and project.
    other = await hold_lease(world, "neighbour", access=stored)
    assert public_of(await other.credential(stored.id)) == stored.versions[0].public_key
    with pytest.raises(ForbiddenError, match="was not chosen"):
        await lease.credential(stored.id)


async def test_an_external_machine_brings_its_own_and_no_other(world: World) -> None:
    machine, unused = await external(world, "lab"), await external(world, "unused")
    assert machine.shape.external is not None
    assert unused.shape.external is not None
    instance = await world.deploy(head=machine)
    (operation,) = await world.controller.operations.list(instance_id=instance.id).all()
    claim = await world.controller.operations.claim(operation.id, "test")
    lease = HeldLease(world.controller, instance.id, operation.id, claim.fencing_token)
    assert "PRIVATE KEY" in (await lease.credential(machine.shape.external.credential_id)).reveal_text()
    with pytest.raises(ForbiddenError, match="was not chosen"):
        await lease.credential(unused.shape.external.credential_id)
