"""Grants: people with a user of their own on a machine. And the SSH keys that they bring."""

from fastapi import Response

from gpuaas_contract.grants import Grant, GrantCreate, GrantPage
from gpuaas_contract.ssh_keys import SshKey, SshKeyCreate, SshKeyPage
from gpuaas_platform.access.service import grants
from gpuaas_platform.accounts.service import ssh_keys
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("grants")
_OF_MACHINE = "/allocations/{allocation_id}/grants"


@routes.post(_OF_MACHINE, Permission.GRANT_MANAGE, status_code=201, response_model=Grant)
async def create_grant(ctx: Ctx, allocation_id: str, body: GrantCreate) -> Response:
    """To a person who has a role in the machine's tenant. It is `active` when the machine has the user."""
    return await ctx.mutate(lambda tx: grants.create_grant(tx, ctx.caller, allocation_id, body), 201)


@routes.get(_OF_MACHINE, Permission.ALLOCATION_READ, response_model=GrantPage)
async def list_grants(
    ctx: Ctx, allocation_id: str, user_id: str | None = None, cursor: str | None = None, limit: Limit = 100
) -> GrantPage:
    """All of a machine, those that have ended too: who may be on it, and who was."""
    async with ctx.read() as tx:
        return await grants.list_grants(tx, ctx.caller, allocation_id, user_id, cursor, limit)


@routes.get("/grants/{grant_id}", Permission.ALLOCATION_READ, response_model=Grant)
async def get_grant(ctx: Ctx, grant_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await grants.get_grant(tx, ctx.caller, grant_id))


@routes.post("/grants/{grant_id}/revoke", Permission.GRANT_MANAGE, response_model=Grant)
async def revoke_grant(ctx: Ctx, grant_id: str) -> Response:
    """Ends at once: streams are cut, and the machine removes the user's keys and sudo and ends its sessions."""
    return await ctx.mutate(lambda tx: grants.revoke_grant(tx, ctx.caller, grant_id))


@routes.get("/users/me/grants", Permission.PERSON, response_model=GrantPage)
async def list_own_grants(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> GrantPage:
    """One's own live ones, on whatever machine."""
    async with ctx.read() as tx:
        return await grants.list_own(tx, ctx.caller, cursor, limit)


@routes.post("/users/me/ssh-keys", Permission.PERSON, status_code=201, response_model=SshKey)
async def add_ssh_key(ctx: Ctx, body: SshKeyCreate) -> Response:
    """It goes to every machine on which one has a grant, now and later."""
    return await ctx.mutate(lambda tx: ssh_keys.add_key(tx, ctx.caller, body), 201)


@routes.get("/users/me/ssh-keys", Permission.PERSON, response_model=SshKeyPage)
async def list_ssh_keys(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> SshKeyPage:
    async with ctx.read() as tx:
        return await ssh_keys.list_keys(tx, ctx.caller, cursor, limit)


@routes.delete("/users/me/ssh-keys/{ssh_key_id}", Permission.PERSON, response_model=SshKey)
async def remove_ssh_key(ctx: Ctx, ssh_key_id: str) -> Response:
    return await ctx.mutate(lambda tx: ssh_keys.remove_key(tx, ctx.caller, ssh_key_id))
