"""A lease to work under, and what can be done with it to secrets."""

from dataclasses import dataclass

from gpuaas_contract.credentials import Credential
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.secret_deliveries import SecretDelivery
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.secret_value import SecretValue
from tests.support.world import World


@dataclass
class HeldLease:
    client: GpuaasClient
    instance_id: str
    operation_id: str
    fencing_token: int

    @property
    def both(self) -> tuple[str, int]:
        return self.operation_id, self.fencing_token

    async def claim_again(self) -> "HeldLease":
        await self.client.operations.yield_lease(*self.both)
        claim = await self.client.operations.claim(self.operation_id, "again")
        return HeldLease(self.client, self.instance_id, self.operation_id, claim.fencing_token)

    async def unwrap(self, delivery: SecretDelivery) -> SecretValue:
        assert delivery.wrapping_token is not None
        return await self.client.secret_deliveries.unwrap(delivery.id, delivery.wrapping_token)

    async def credential(self, credential_id: str, version: int | None = None) -> SecretValue:
        return await self.unwrap(await self.client.credentials.deliver(credential_id, *self.both, version=version))

    async def secret(self, secret_id: str, version: int | None = None) -> SecretValue:
        return await self.unwrap(await self.client.secrets.deliver(secret_id, *self.both, version=version))


async def hold_lease(world: World, name: str = "greeter", *, access: Credential | None = None) -> HeldLease:
    """Of the deploy operation of a new instance, for which the access credential was chosen."""
    instance = await world.deploy(head=await world.allocation(f"for-{name}"), name=name, access=access)
    (operation_id,) = [
        op.id async for op in world.controller.operations.list(instance_id=instance.id) if op.kind == "deploy"
    ]
    claim = await world.controller.operations.claim(operation_id, "test")
    return HeldLease(world.controller, instance.id, operation_id, claim.fencing_token)


async def decommission(world: World, instance_id: str) -> None:
    wanted = await world.admin.instances.request(instance_id, "decommission")
    claim = await world.controller.operations.claim(wanted.id, "test")
    members = [member.id async for member in world.controller.instances.members(instance_id)]
    gone = dict.fromkeys(members, MemberStatus.REMOVED)
    await world.controller.operations.complete(wanted.id, claim.fencing_token, member_statuses=gone)
