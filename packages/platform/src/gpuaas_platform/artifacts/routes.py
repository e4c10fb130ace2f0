"""Artifacts, the keys that vouch for them, and the way to the registry."""

import base64
import binascii
import re
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse

from gpuaas_contract import ids
from gpuaas_contract.artifacts import (
    Artifact,
    ArtifactPage,
    ArtifactRegister,
    Registry,
    RegistryToken,
    RegistryTokenState,
    RegistryUpload,
    TrustedKey,
    TrustedKeyCreate,
    TrustedKeyPage,
)
from gpuaas_contract.problems import Code
from gpuaas_platform.api.context import Ctx, Limit, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.artifacts.rules.registry_access import PULL, PUSH, Access, read_scopes
from gpuaas_platform.artifacts.service import artifacts, registry, trusted_keys
from gpuaas_platform.artifacts.service.artifacts import DeleteArtifact, RegisterArtifact, VerifyArtifact
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.principals import password_change_required

routes = Routes("artifacts")
_ONE = "/artifacts/{artifact_id}"
_UPLOAD_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEY = "/trusted-keys/{trusted_key_id}"


@routes.post("/artifacts", Permission.ARTIFACT_MANAGE, status_code=201, response_model=Artifact)
async def register_artifact(ctx: Ctx, body: ArtifactRegister) -> Response:
    """Make known what was pushed. Its manifest is read and checked; the file stays where it is."""
    return await ctx.mutate_outside(RegisterArtifact(ctx.platform.registry, ctx.caller, body), 201)


@routes.get("/artifacts", Permission.ARTIFACT_READ, response_model=ArtifactPage)
async def list_artifacts(
    ctx: Ctx,
    app_slug: str | None = None,
    project_id: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> ArtifactPage:
    async with ctx.read() as tx:
        return await artifacts.list_artifacts(tx, ctx.caller, app_slug, project_id, cursor, limit)


@routes.get(_ONE, Permission.ARTIFACT_READ, response_model=Artifact)
async def get_artifact(ctx: Ctx, artifact_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await artifacts.get_artifact(tx, ctx.caller, artifact_id))


@routes.post(f"{_ONE}/verify", Permission.ARTIFACT_MANAGE, response_model=Artifact)
async def verify_artifact(ctx: Ctx, artifact_id: str) -> Response:
    """Check its signature, in cosign's format, with the trusted keys of its owner."""
    return await ctx.mutate_outside(VerifyArtifact(ctx.platform.registry, ctx.caller, artifact_id))


@routes.post(f"{_ONE}/promote", Permission.ARTIFACT_MANAGE, response_model=Artifact)
async def promote_artifact(ctx: Ctx, artifact_id: str) -> Response:
    """From now on it may be delivered to machines."""
    return await ctx.mutate(lambda tx: artifacts.promote_artifact(tx, ctx.caller, artifact_id))


@routes.post(f"{_ONE}/retire", Permission.ARTIFACT_MANAGE, response_model=Artifact)
async def retire_artifact(ctx: Ctx, artifact_id: str) -> Response:
    return await ctx.mutate(lambda tx: artifacts.retire_artifact(tx, ctx.caller, artifact_id))


@routes.delete(_ONE, Permission.ARTIFACT_MANAGE, response_model=Artifact)
async def delete_artifact(ctx: Ctx, artifact_id: str) -> Response:
    """Gone from the registry, too. A promoted one is retired first."""
    return await ctx.mutate_outside(DeleteArtifact(ctx.platform.registry, ctx.caller, artifact_id))


@routes.post("/trusted-keys", Permission.ARTIFACT_MANAGE, status_code=201, response_model=TrustedKey)
async def add_trusted_key(ctx: Ctx, body: TrustedKeyCreate) -> Response:
    return await ctx.mutate(lambda tx: trusted_keys.add_key(tx, ctx.caller, body), 201)


@routes.get("/trusted-keys", Permission.ARTIFACT_READ, response_model=TrustedKeyPage)
async def list_trusted_keys(
    ctx: Ctx,
    app_slug: str | None = None,
    project_id: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> TrustedKeyPage:
    async with ctx.read() as tx:
        return await trusted_keys.list_keys(tx, ctx.caller, app_slug, project_id, cursor, limit)


@routes.get(_KEY, Permission.ARTIFACT_READ, response_model=TrustedKey)
async def get_trusted_key(ctx: Ctx, trusted_key_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await trusted_keys.get_key(tx, ctx.caller, trusted_key_id))


@routes.delete(_KEY, Permission.ARTIFACT_MANAGE, response_model=TrustedKey)
async def delete_trusted_key(ctx: Ctx, trusted_key_id: str) -> Response:
    """Delete a trusted key. Artifacts that were verified with it stay verified."""
    return await ctx.mutate(lambda tx: trusted_keys.delete_key(tx, ctx.caller, trusted_key_id))


@routes.get("/registry", Permission.AUTHENTICATED, response_model=Registry)
async def get_registry(ctx: Ctx) -> Registry:
    return Registry(url=ctx.platform.registry.registry.url)


@routes.get("/registry/token", Permission.AUTHENTICATED, response_model=RegistryToken)
async def get_registry_token(
    request: Request,
    scope: Annotated[list[str] | None, Query(max_length=20)] = None,
    service: Annotated[str | None, Query(max_length=100)] = None,
    account: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Docker's token protocol, for `oras` and its like: HTTP basic with a service account's id and secret, or with
    any name and an access token as the password. What the caller may not do is left out of the token."""
    platform = platform_of(request)
    try:
        caller, login = await _authenticated(request)
    except Refusal as refusal:
        if refusal.status == 401:
            request.state.challenge = 'Basic realm="gpuaas"'
        raise
    platform.limits.requests.take(caller.id)
    asked = read_scopes(scope or [])
    pushes = any(PUSH in access.actions for access in asked)
    if _is_basic(request):
        # Some programs ask once, to look, and then push with the same token: they get all that they may.
        asked = [Access(access.repository, (PULL, PUSH)) for access in asked]
    async with platform.database.reading(caller.id, str(request.state.correlation_id)) as tx:
        granted = await registry.allowed(tx, caller, asked)
        to_push = [access.repository for access in granted if PUSH in access.actions]
        registered = {repository: await platform.registry.registered(tx, repository) for repository in to_push}
    no_room = await platform.registry.push_refusal(registered)
    if no_room is not None and pushes:
        raise no_room
    if no_room is not None:
        granted = [Access(access.repository, tuple(a for a in access.actions if a != PUSH)) for access in granted]
    token = await platform.registry.token(caller.id, *granted, login=login)
    return JSONResponse(token.model_dump(mode="json"), headers={"Cache-Control": "no-store"})


@routes.get("/registry/check", Permission.ANONYMOUS, response_model=RegistryTokenState)
async def check_registry_token(request: Request) -> Response:
    """For the guard in front of the registry, which shows as a bearer token what it was shown: not active where the
    right behind it was withdrawn since, or where it is no token of ours. Who asks learns nothing else."""
    platform = platform_of(request)
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    claims = platform.registry.read_token(shown.strip()) if scheme.lower() == "bearer" else None
    active = False
    if claims is not None:
        async with platform.database.reading(str(claims["sub"]), str(request.state.correlation_id)) as tx:
            active = await registry.is_still_allowed(tx, platform.tokens, claims)
    return JSONResponse(RegistryTokenState(active=active).model_dump(), headers={"Cache-Control": "no-store"})


@routes.get("/registry/uploads/{upload_id}", Permission.AUTHENTICATED, response_model=RegistryUpload)
async def get_registry_upload(
    ctx: Ctx, upload_id: str, repository: Annotated[str, Query(max_length=255)]
) -> RegistryUpload:
    """Where an upload that was cut goes on. Who may not push there is told of none."""
    async with ctx.read() as tx:
        granted = await registry.allowed(tx, ctx.caller, [Access(repository, (PUSH,))])
    found = None
    if granted and _UPLOAD_ID.fullmatch(upload_id):
        found = await ctx.platform.registry.uploads.find(repository, upload_id)
    return found or RegistryUpload()


async def _authenticated(request: Request) -> tuple[Caller, registry.Login]:
    platform, correlation_id = platform_of(request), str(request.state.correlation_id)
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    bearer = shown.strip()
    if _is_basic(request):
        name, bearer = _basic(bearer)
        if ids.is_id(name, ids.SERVICE_ACCOUNT) and bearer.count(".") != 2:
            bearer = (await platform.oauth.client_with_secret(name, bearer, correlation_id)).access_token
    elif scheme.lower() != "bearer":
        raise Refusal(Code.UNAUTHENTICATED, "log in with HTTP basic: an access token is the password")
    found = await platform.tokens.authenticate(bearer, correlation_id)
    if found.password_change_required:
        raise password_change_required()
    return found.caller, registry.Login((await platform.tokens.verify(bearer)).get("epoch"), found.session_id)


def _is_basic(request: Request) -> bool:
    return request.headers.get("authorization", "").lower().startswith("basic ")


def _basic(encoded: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeError) as error:
        raise Refusal(Code.UNAUTHENTICATED, "the Authorization header cannot be read") from error
    return name, password
