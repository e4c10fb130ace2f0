"""Access credentials: SSH keys for machines outside of the project's SSH authority."""

from functools import partial

from fastapi import Response

from gpuaas_contract.credentials import Credential, CredentialCreate, CredentialPage, CredentialRotate
from gpuaas_contract.secret_deliveries import SecretDelivery, SecretDeliveryRequest
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.secrets.service.deliveries import Deliver
from gpuaas_platform.vault.service import credentials
from gpuaas_platform.vault.service.credentials import CreateCredential, RotateCredential

routes = Routes("credentials")
_ONE = "/credentials/{credential_id}"


@routes.post("/credentials", Permission.CREDENTIAL_MANAGE, status_code=201, response_model=Credential)
async def create_credential(ctx: Ctx, body: CredentialCreate) -> Response:
    """The answer shows the public key; the private key is in no answer but to the holder of a lease."""
    return await ctx.mutate_outside(CreateCredential(ctx.platform.secrets, ctx.caller, body), 201)


@routes.get("/credentials", Permission.CREDENTIAL_READ, response_model=CredentialPage)
async def list_credentials(
    ctx: Ctx, project_id: str | None = None, cursor: str | None = None, limit: Limit = 100
) -> CredentialPage:
    async with ctx.read() as tx:
        return await credentials.list_credentials(tx, ctx.caller, project_id, cursor, limit)


@routes.get(_ONE, Permission.CREDENTIAL_READ, response_model=Credential)
async def get_credential(ctx: Ctx, credential_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await credentials.get_credential(tx, ctx.caller, credential_id))


@routes.post(f"{_ONE}/rotate", Permission.CREDENTIAL_MANAGE, response_model=Credential)
async def rotate_credential(ctx: Ctx, credential_id: str, body: CredentialRotate) -> Response:
    """A new version, beside the one before it: bring its public key out, then end the old version."""
    return await ctx.mutate_outside(RotateCredential(ctx.platform.secrets, ctx.caller, credential_id, body))


@routes.delete(f"{_ONE}/versions/{{number}}", Permission.CREDENTIAL_MANAGE, response_model=Credential)
async def end_credential_version(ctx: Ctx, credential_id: str, number: int) -> Response:
    return await ctx.mutate(lambda tx: credentials.end_version(tx, ctx.caller, credential_id, number))


@routes.post(f"{_ONE}/revoke", Permission.CREDENTIAL_MANAGE, response_model=Credential)
async def revoke_credential(ctx: Ctx, credential_id: str) -> Response:
    """Refuse every delivery from now on, and destroy the keys. This cannot be undone."""
    return await ctx.mutate(lambda tx: credentials.revoke_credential(tx, ctx.caller, credential_id))


@routes.delete(_ONE, Permission.CREDENTIAL_MANAGE, response_model=Credential)
async def delete_credential(ctx: Ctx, credential_id: str) -> Response:
    """Works while the secrets server is away, too: the keys are destroyed there when it is back."""
    return await ctx.mutate(lambda tx: credentials.delete_credential(tx, ctx.caller, credential_id))


@routes.post(f"{_ONE}/deliveries", Permission.OPERATION_WORK, status_code=201, response_model=SecretDelivery)
async def deliver_credential(ctx: Ctx, credential_id: str, body: SecretDeliveryRequest) -> Response:
    """A wrapping token for the holder of the lease of an operation in the credential's project."""
    choose = partial(credentials.choose_version, credential_id=credential_id)
    return await ctx.mutate_outside(Deliver(ctx.platform.secrets, ctx.caller, body, choose), 201)
