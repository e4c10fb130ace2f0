"""People, their memberships and their own passwords."""

from fastapi import Response

from gpuaas_contract.identity import (
    Membership,
    MembershipCreate,
    MembershipPage,
    User,
    UserCreate,
    UserPage,
    UserUpdate,
)
from gpuaas_contract.problems import Code, FieldError
from gpuaas_contract.sessions import PasswordChange
from gpuaas_platform.accounts.service import passwords, users
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Permission, Scope

routes = Routes("users")


@routes.post("/users", Permission.USER_MANAGE, status_code=201, response_model=User)
async def create_user(ctx: Ctx, body: UserCreate) -> Response:
    ctx.caller.require(Permission.USER_MANAGE, Scope(), "user", body.email)
    password_hash = await passwords.hash_password(body.password.get_secret_value())
    return await ctx.mutate(lambda tx: users.create_user(tx, ctx.caller, body, password_hash), 201)


@routes.get("/users", Permission.USER_MANAGE, response_model=UserPage)
async def list_users(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> UserPage:
    async with ctx.read() as tx:
        return await users.list_users(tx, ctx.caller, cursor, limit)


@routes.get("/users/{user_id}", Permission.USER_MANAGE, response_model=User)
async def get_user(ctx: Ctx, user_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await users.get_user(tx, ctx.caller, user_id))


@routes.patch("/users/{user_id}", Permission.USER_MANAGE, response_model=User)
async def update_user(ctx: Ctx, user_id: str, body: UserUpdate) -> Response:
    """Disable, enable, or give a one-time password. Every login of the user ends at once."""
    ctx.caller.require(Permission.USER_MANAGE, Scope(), "user", user_id)
    password_hash = None
    if body.password is not None:
        password_hash = await passwords.hash_password(body.password.get_secret_value())
    return await ctx.mutate(lambda tx: users.update_user(tx, ctx.caller, user_id, body, password_hash))


@routes.delete("/users/{user_id}", Permission.USER_MANAGE, response_model=User)
async def delete_user(ctx: Ctx, user_id: str) -> Response:
    return await ctx.mutate(lambda tx: users.delete_user(tx, ctx.caller, user_id))


@routes.post("/auth/password", Permission.OWN_LOGIN, response_model=User)
async def change_own_password(ctx: Ctx, body: PasswordChange) -> Response:
    """Every other login of the caller ends, and so do the tokens of this one."""
    current, new = body.current_password.get_secret_value(), body.new_password.get_secret_value()
    if current == new:
        detail = "the new password is the old one"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/new_password", detail=detail)])
    right = await ctx.platform.logins.confirm(ctx.caller, current, ctx.correlation_id)
    password_hash = await passwords.hash_password(new) if right else None
    return await ctx.mutate(lambda tx: users.change_own_password(tx, ctx.caller, ctx.session_id, password_hash))


@routes.post("/memberships", Permission.MEMBERSHIP_CREATE, status_code=201, response_model=Membership)
async def create_membership(ctx: Ctx, body: MembershipCreate) -> Response:
    return await ctx.mutate(lambda tx: users.create_membership(tx, ctx.caller, body), 201)


@routes.get("/memberships", Permission.AUTHENTICATED, response_model=MembershipPage)
async def list_memberships(
    ctx: Ctx,
    user_id: str | None = None,
    tenant_id: str | None = None,
    project_id: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> MembershipPage:
    """One's own, and those in the tenants and projects that one administers. A tenant's include its projects'."""
    async with ctx.read() as tx:
        return await users.list_memberships(tx, ctx.caller, user_id, tenant_id, project_id, cursor, limit)


@routes.delete("/memberships/{membership_id}", Permission.MEMBERSHIP_DELETE, response_model=Membership)
async def delete_membership(ctx: Ctx, membership_id: str) -> Response:
    return await ctx.mutate(lambda tx: users.delete_membership(tx, ctx.caller, membership_id))
