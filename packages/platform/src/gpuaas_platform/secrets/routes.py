"""Run-time secrets of app instances, and the unwrapping of what was delivered."""

from functools import partial

from fastapi import Response

from gpuaas_contract.problems import Code, FieldError
from gpuaas_contract.secret_deliveries import SecretDelivery, SecretDeliveryRequest, UnwrappedSecret, UnwrapRequest
from gpuaas_contract.secrets import ReadSecret, Secret, SecretEnsure, SecretPage, SecretRead
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.secrets.service import deliveries as secret_deliveries
from gpuaas_platform.secrets.service import readings, secrets
from gpuaas_platform.secrets.service.deliveries import Deliver
from gpuaas_platform.secrets.service.readings import ReadValue
from gpuaas_platform.secrets.service.secrets import EnsureSecret, RotateSecret

routes = Routes("secrets")


@routes.post("/operations/{operation_id}/secrets", Permission.OPERATION_WORK, response_model=Secret)
async def ensure_secret(ctx: Ctx, operation_id: str, body: SecretEnsure) -> Response:
    """The secret of that name of the operation's instance, made where it is missing. Not its value."""
    return await ctx.mutate_outside(EnsureSecret(ctx.platform.secrets, ctx.caller, operation_id, body))


@routes.get("/app-instances/{instance_id}/secrets", Permission.INSTANCE_READ, response_model=SecretPage)
async def list_secrets(ctx: Ctx, instance_id: str, cursor: str | None = None, limit: Limit = 100) -> SecretPage:
    async with ctx.read() as tx:
        return await secrets.list_secrets(tx, ctx.caller, instance_id, cursor, limit)


@routes.post("/app-instances/{instance_id}/secrets/read", Permission.SECRET_READ, response_model=ReadSecret)
async def read_secret(ctx: Ctx, instance_id: str, body: SecretRead) -> Response:
    """The value, for a person whose role the app's manifest names for this secret, and who gives their password again.
    The answer to a repeated request with the same key comes without the value."""
    async with ctx.read() as tx:
        await readings.require_reader(tx, ctx.caller, instance_id, body.name)
    if not await ctx.platform.logins.confirm(ctx.caller, body.password.get_secret_value(), ctx.correlation_id):
        detail = "this is not your present password"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/password", detail=detail)])
    return await ctx.mutate_outside(ReadValue(ctx.platform.secrets, ctx.caller, instance_id, body))


@routes.get("/secrets/{secret_id}", Permission.INSTANCE_READ, response_model=Secret)
async def get_secret(ctx: Ctx, secret_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await secrets.get_secret(tx, ctx.caller, secret_id))


@routes.post("/secrets/{secret_id}/rotate", Permission.SECRET_ROTATE, response_model=Secret)
async def rotate_secret(ctx: Ctx, secret_id: str) -> Response:
    """A new value. The one before it can still be delivered, by its version; older ones are destroyed."""
    return await ctx.mutate_outside(RotateSecret(ctx.platform.secrets, ctx.caller, secret_id))


@routes.post(
    "/secrets/{secret_id}/deliveries", Permission.OPERATION_WORK, status_code=201, response_model=SecretDelivery
)
async def deliver_secret(ctx: Ctx, secret_id: str, body: SecretDeliveryRequest) -> Response:
    """A wrapping token for the holder of the lease of an operation of the secret's instance."""
    choose = partial(secrets.choose_version, secret_id=secret_id)
    return await ctx.mutate_outside(Deliver(ctx.platform.secrets, ctx.caller, body, choose), 201)


@routes.post(
    "/secret-deliveries/{secret_delivery_id}/unwrap", Permission.OPERATION_WORK, response_model=UnwrappedSecret
)
async def unwrap_secret(ctx: Ctx, secret_delivery_id: str, body: UnwrapRequest) -> Response:
    """The value, once, while the lease is held. No idempotency key brings it back: a second use is refused."""
    found = await secret_deliveries.unwrap(
        ctx.platform.secrets, ctx.caller, ctx.correlation_id, secret_delivery_id, body
    )
    return Response(found.model_dump_json(), 200, {"Cache-Control": "no-store"}, media_type="application/json")
