"""External machines: known by address, host key and a credential; nothing of the platform is on them."""

import base64
import secrets
import struct
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpuaas_contract.access import DirectAccess
from gpuaas_contract.allocations import Allocation, Shape, ShapeKind
from gpuaas_contract.artifacts import DeliveryStatus
from gpuaas_contract.external import ExternalMachine
from gpuaas_sdk.registry import RegistryError
from tests.http.test_machines import refused, usage_of
from tests.support.artifacts import promoted
from tests.support.world import World


def public_key(kind: str = "ssh-ed25519", content: bytes = b"\0\0\0\x20" + b"k" * 32) -> str:
    blob = struct.pack(">I", len(kind)) + kind.encode() + content
    return f"{kind} {base64.b64encode(blob).decode()}"


GOOD: dict[str, Any] = {
    "address": "198.51.100.7",
    "host_key": public_key(),
    "credential_id": "crd_01m7gts9153bz3py7rd3350de3",
}


async def make(world: World, name: str = "lab", **changes: object) -> Allocation:
    credential = await world.admin.credentials.create(world.project.id, f"key-{secrets.token_hex(3)}")
    external = ExternalMachine.model_validate({**GOOD, "credential_id": credential.id, **changes})
    shape = Shape(kind=ShapeKind.EXTERNAL, cpus=8, external=external)
    return await world.admin.allocations.create(world.project.id, name, shape=shape)


async def test_there_at_once_and_gone_at_once(world: World) -> None:
    made = await make(world, port=2222, login="admin")
    assert (made.status, made.address, made.node_id) == ("active", "198.51.100.7", None)
    assert made.shape.external is not None
    assert (made.shape.external.port, made.shape.external.login) == (2222, "admin")
    assert [action.action for action in made.allowed_actions] == ["release"]
    records = await usage_of(world, made.id)
    assert {record.ended_at for record in records.values()} == {None}
    assert len(records) == 2
    released = await world.admin.allocations.release(made.id)
    assert (released.status, released.charged_until is not None) == ("released", True)
    last = (await world.admin.allocations.timeline(made.id)).items[-1]
    assert "the platform had put nothing on the machine" in last.message
    assert all(record.ended_at is not None for record in (await usage_of(world, made.id)).values())
    await refused(world.admin.allocations.release(made.id), "invalid_state")


async def test_two_may_have_one_address(world: World) -> None:
    """Behind one address there may be many ports; and who else has it is nobody's business."""
    first, second = await make(world, "one"), await make(world, "two", port=2222)
    assert first.address == second.address


async def test_what_takes_an_agent_is_refused(world: World) -> None:
    made = await make(world)
    admin = world.admin.allocations
    key = public_key()
    volume = await world.admin.volumes.create(world.project.id, "home", size_gib=2)
    attach = world.admin.volumes.attach(volume.id, allocation_id=made.id, path="/mnt/home")
    for call in (admin.restart(made.id), admin.resize(made.id, cpus=2), admin.access(made.id, key), attach):
        error = await refused(call, "shape_unsupported")
        assert "lab is an external machine" in str(error)
    assert await world.admin.allocations.get(made.id) == made


async def test_the_lease_holder_is_told_how_to_get_there(world: World) -> None:
    made, slice_ = await make(world), await world.allocation("near")
    instance = await world.deploy(slice_, head=made)
    assert (await world.admin.allocations.get(made.id)).instance_ids == [instance.id]
    await refused(world.admin.allocations.release(made.id), "allocation_in_use")
    listed = world.controller.operations.list(instance_id=instance.id)
    ids = {op.kind: op.id async for op in listed}
    claims = {kind: await world.controller.operations.claim(id, "test") for kind, id in ids.items()}
    own = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    async def ways(kind: str) -> dict[str, DirectAccess | None]:
        grant = await world.controller.operations.access(ids[kind], claims[kind].fencing_token, own)
        # Only what a certificate opens is closed by the machine: a stored key cannot be taken back.
        assert all(machine.closed_at_end == (machine.direct is None) for machine in grant.machines)
        return {machine.allocation_id: machine.direct for machine in grant.machines}

    direct = (await ways("deploy"))[made.id]
    assert direct is not None
    assert await ways("add") == {made.id: direct, slice_.id: None}
    assert made.shape.external is not None
    assert direct.model_dump() == made.shape.external.model_dump(exclude={"address"})
    operation_id, claim = ids["deploy"], claims["deploy"]
    # No agent brings files there: the holder of the lease is told where to fetch them, and may.
    content = secrets.token_bytes(100)
    artifact = await promoted(world.admin, content, app_slug=world.app_slug)
    delivery = await world.controller.operations.deliver(
        operation_id, claim.fencing_token, allocation_id=made.id, digest=artifact.digest
    )
    assert delivery.status == DeliveryStatus.TO_COPY
    assert delivery.source is not None
    where = (delivery.source.repository, delivery.source.digest)
    size = await world.controller.registry.size(*where)
    assert size == len(content)
    assert b"".join([piece async for piece in world.controller.registry.read(*where, size)]) == content
    with pytest.raises(RegistryError, match="has other content as sha256"):
        assert [piece async for piece in world.controller.registry.read(*where, size - 1)] == []
    assert (await world.controller.deliveries.get(delivery.id, wait=5)).status == DeliveryStatus.TO_COPY
    with pytest.raises(RegistryError, match="may not"):
        await world.controller.registry.size("apps/another/packages", delivery.source.digest)


async def test_credentials_of_others_and_revoked_ones_are_refused(world: World) -> None:
    other = await world.admin.projects.create(world.tenant.id, f"other-{secrets.token_hex(3)}")
    foreign = await world.admin.credentials.create(other.id, "foreign")
    for unknown in (foreign.id, GOOD["credential_id"]):
        error = await refused(make(world, credential_id=unknown), "invalid_request")
        assert error.problem.errors[0].pointer == "/shape/external/credential_id"
    revoked = await world.admin.credentials.create(world.project.id, "revoked")
    await world.admin.credentials.revoke(revoked.id)
    await refused(make(world, credential_id=revoked.id), "invalid_state")
    assert await world.admin.allocations.list(project_id=world.project.id).all() == []


BAD: dict[str, list[Any]] = {
    "address": [
        "",
        "a b",
        "host;reboot",
        "$(id)",
        "-oProxyCommand=x",
        "10.0.0.256",
        "1.2.3",
        "0.0.0.0",
        "fe80::1%eth0",
    ],
    "port": [0, 65_536, "ssh"],
    "login": ["root;id", "", "Ro ot", "-l"],
    "host_key": [
        "",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-dss AAAAB3NzaC1kc3M=",
        public_key("ssh-rsa").replace("ssh-rsa", "ssh-ed25519", 1),
        f"{public_key()}\n@cert-authority * {public_key()}",
        f"@cert-authority * {public_key()}",
    ],
    "credential_id": ["", "crd_", "alc_01m7gts9153bz3py7rd3350de3", "crd_../x"],
}


async def post(world: World, shape: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {await world.admin.token()}"}
    body = {"project_id": world.project.id, "name": "bad", "shape": shape}
    async with httpx.AsyncClient(base_url=world.admin.api_url, headers=headers) as http:
        return dict((await http.post("/v1/allocations", json=body)).json())


async def test_nonsense_is_refused_and_nothing_is_made(world: World) -> None:
    for name, values in BAD.items():
        for value in values:
            answer = await post(world, {"kind": "external", "external": {**GOOD, name: value}})
            assert answer["code"] == "invalid_request", (name, value)
            assert [error["pointer"] for error in answer["errors"]] == [f"/shape/external/{name}"], (name, value)
    for shape in ({"kind": "external"}, {"kind": "slice", "external": GOOD}, {"kind": "host", "external": GOOD}):
        assert (await post(world, shape))["code"] == "invalid_request"
    assert await world.admin.allocations.list(project_id=world.project.id).all() == []
