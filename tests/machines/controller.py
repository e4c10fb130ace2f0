"""A controller of an app that does nothing by itself: for tests that reach machines the way controllers do."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpuaas_contract.instances import InstanceDeploy, MemberStatus, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Claim
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, ServiceAccountCredentials
from gpuaas_sdk.machines.ssh import SshMachineAccess
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.stack import Stack
from tests.support.world import MANIFEST, make_key


@dataclass
class Controller:
    admin: GpuaasClient
    client: GpuaasClient
    app_slug: str
    machines: SshMachineAccess


@asynccontextmanager
async def controller_on(stack: Stack, project_id: str, allocation_id: str) -> AsyncIterator[Controller]:
    """Holds the lease of an operation on the machine; afterwards nothing is deployed there any more."""
    url, password = stack.settings.api_url, stack.settings.admin_password_file.read_text().strip()
    async with GpuaasClient(url, PasswordCredentials(ADMIN_EMAIL, password)) as admin:
        slug = f"echo-{secrets.token_hex(4)}"
        await admin.app_versions.publish(Manifest.model_validate({**MANIFEST, "slug": slug}))
        await admin.entitlements.grant((await admin.projects.get(project_id)).tenant_id, slug)
        private, public = make_key()
        account = await admin.service_accounts.create(project_id, slug, public, app_slug=slug)
        async with GpuaasClient(url, ServiceAccountCredentials(account.id, private)) as client:
            placement = [Placement(component_key="head", allocation_id=allocation_id)]
            instance = await admin.instances.deploy(
                InstanceDeploy(project_id=project_id, app_slug=slug, name=slug, placement_intent=placement)
            )
            (operation,) = [op async for op in client.operations.list(instance_id=instance.id)]
            claim = await client.operations.claim(operation.id, "test")
            machines = SshMachineAccess(client, claim)
            beating = asyncio.create_task(_keep(client, claim))
            try:
                await machines.prepare()
                yield Controller(admin, client, slug, machines)
            finally:
                beating.cancel()
                await machines.close()
            await client.operations.complete(operation.id, claim.fencing_token)
            ending = await admin.instances.request(instance.id, "decommission")
            last = await client.operations.claim(ending.id, "test")
            gone = {member.id: MemberStatus.REMOVED async for member in client.instances.members(instance.id)}
            await client.operations.complete(ending.id, last.fencing_token, member_statuses=gone)


async def _keep(client: GpuaasClient, claim: Claim) -> None:
    """The lease, for as long as the test takes."""
    while True:
        await asyncio.sleep(claim.lease_seconds / 4)
        await client.operations.heartbeat(claim.operation.id, claim.fencing_token)
