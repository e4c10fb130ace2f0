"""The access credential that a deploy chose: named in the grant, delivered under the lease, and no other one."""

import pytest

from gpuaas_contract.instances import ChosenAccess, InstanceDeploy, Placement
from gpuaas_sdk.errors import ForbiddenError, InvalidRequestError, StaleLeaseError
from tests.support.leases import HeldLease
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
    assert one.id not in _principals(grant.certificate)
    assert two.id in _principals(grant.certificate)
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
