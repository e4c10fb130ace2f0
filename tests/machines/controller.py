"""An app that does nothing by itself, and its controller: for tests that reach machines the way controllers do."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpuaas_contract.instances import ChosenAccess, Instance, InstanceDeploy, MemberStatus, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Claim
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, ServiceAccountCredentials
from gpuaas_sdk.machines.ssh import SshMachineAccess
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.stack import Stack
from tests.support.world import MANIFEST, make_key


@dataclass
class App:
    admin: GpuaasClient
    client: GpuaasClient
    account_id: str
    private_key: str
    instance: Instance


@asynccontextmanager
async def app_on(
    stack: Stack, project_id: str, allocation_id: str, access: ChosenAccess | None = None, *, tails: Sequence[str] = ()
) -> AsyncIterator[App]:
    """An instance on the machine, further members on those of `tails`, and its app's account; afterwards nothing is
    deployed there any more."""
    url, password = stack.settings.api_url, stack.settings.admin_password_file.read_text().strip()
    async with GpuaasClient(url, PasswordCredentials(ADMIN_EMAIL, password)) as admin:
        slug = f"echo-{secrets.token_hex(4)}"
        await admin.app_versions.publish(Manifest.model_validate({**MANIFEST, "slug": slug}))
        await admin.entitlements.grant((await admin.projects.get(project_id)).tenant_id, slug)
        private, public = make_key()
        account = await admin.service_accounts.create(project_id, slug, public, app_slug=slug)
        async with GpuaasClient(url, ServiceAccountCredentials(account.id, private)) as client:
            placement = [Placement(component_key="head", allocation_id=allocation_id, access=access)]
            placement += [Placement(component_key="tail", allocation_id=tail) for tail in tails]
            request = InstanceDeploy(project_id=project_id, app_slug=slug, name=slug, placement_intent=placement)
            instance = await admin.instances.deploy(request)
            yield App(admin, client, account.id, private, instance)
            ending = await admin.instances.request(instance.id, "decommission")
            last = await client.operations.claim(ending.id, "test")
            gone = {member.id: MemberStatus.REMOVED async for member in client.instances.members(instance.id)}
            await client.operations.complete(ending.id, last.fencing_token, member_statuses=gone)


@dataclass
class Controller:
    admin: GpuaasClient
    client: GpuaasClient
    app_slug: str
    machines: SshMachineAccess


@asynccontextmanager
async def controller_on(
    stack: Stack, project_id: str, allocation_id: str, access: ChosenAccess | None = None
) -> AsyncIterator[Controller]:
    """Holds the lease of an operation on the machine; afterwards nothing is deployed there any more."""
    async with app_on(stack, project_id, allocation_id, access) as app:
        (operation,) = [op async for op in app.client.operations.list(instance_id=app.instance.id)]
        claim = await app.client.operations.claim(operation.id, "test")
        machines = SshMachineAccess(app.client, claim)
        beating = asyncio.create_task(_keep(app.client, claim))
        try:
            await machines.prepare()
            yield Controller(app.admin, app.client, app.instance.app_slug, machines)
        finally:
            beating.cancel()
            await machines.close()
        await app.client.operations.complete(operation.id, claim.fencing_token)


async def _keep(client: GpuaasClient, claim: Claim) -> None:
    """The lease, for as long as the test takes."""
    while True:
        await asyncio.sleep(claim.lease_seconds / 4)
        await client.operations.heartbeat(claim.operation.id, claim.fencing_token)
