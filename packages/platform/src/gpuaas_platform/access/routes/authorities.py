"""SSH authorities of projects and tenants."""

from fastapi import Response

from gpuaas_contract.ssh_authorities import AuthorityRetire, SshAuthority
from gpuaas_platform.access.service import rotations as ssh_authorities
from gpuaas_platform.access.service.rotations import RotateAuthority
from gpuaas_platform.api.context import Ctx
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("ssh-authorities")
_ONE = "/ssh-authorities/{owner_id}"


@routes.get(_ONE, Permission.SSH_AUTHORITY_READ, response_model=SshAuthority)
async def get_ssh_authority(ctx: Ctx, owner_id: str) -> SshAuthority:
    """Of a project, or of a tenant for its own machines; with the machines that have not heard of its last change."""
    async with ctx.read() as tx:
        return await ssh_authorities.get_authority(tx, ctx.caller, owner_id)


@routes.post(f"{_ONE}/rotate", Permission.SSH_AUTHORITY_MANAGE, response_model=SshAuthority)
async def rotate_ssh_authority(ctx: Ctx, owner_id: str) -> Response:
    """A new key beside the old one. All machines are told to trust both, and get host certificates of the new one."""
    return await ctx.mutate_outside(RotateAuthority(ctx.platform.authorities, ctx.caller, owner_id))


@routes.post(f"{_ONE}/retire", Permission.SSH_AUTHORITY_MANAGE, response_model=SshAuthority)
async def retire_ssh_authority(ctx: Ctx, owner_id: str, body: AuthorityRetire | None = None) -> Response:
    """End the old one of two. Refused while a machine does not trust the new one yet, unless it is forced."""
    asked = body or AuthorityRetire()
    return await ctx.mutate(lambda tx: ssh_authorities.retire_authority(tx, ctx.caller, owner_id, asked))
