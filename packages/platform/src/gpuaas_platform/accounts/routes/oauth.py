"""OAuth 2 for service accounts and command lines."""

import base64
import binascii
from typing import Annotated
from urllib.parse import unquote

from fastapi import Form, Query, Request, Response
from fastapi.responses import JSONResponse

from gpuaas_contract.base import API_PREFIX
from gpuaas_contract.identity import Token
from gpuaas_contract.oauth import (
    ASSERTION_TYPE,
    CLIENT_CREDENTIALS,
    DEVICE_CODE,
    REFRESH_TOKEN,
    AuthorizationServerMetadata,
    DeviceAuthorization,
    DeviceDecision,
    DeviceRequest,
    JsonWebKeySet,
)
from gpuaas_contract.problems import Code
from gpuaas_platform.accounts.service import oauth
from gpuaas_platform.api.context import Ctx, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.origins import current_origin
from gpuaas_platform.identity.records import DeviceStatus
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.identity.service.assertions import ALGORITHMS

routes = Routes("oauth")
well_known = Routes("oauth", prefix="/.well-known")
ClientId = Annotated[str, Form(pattern=r"^[ -~]{1,100}$")]
Text = Annotated[str | None, Form(max_length=4_000)]


@routes.post("/oauth/token", Permission.ANONYMOUS, response_model=Token, response_model_exclude_none=True)
async def exchange_token(
    request: Request,
    response: Response,
    grant_type: Annotated[str, Form(max_length=100)],
    client_id: Text = None,
    client_secret: Text = None,
    client_assertion_type: Text = None,
    client_assertion: Text = None,
    device_code: Text = None,
    refresh_token: Text = None,
) -> Token:
    """Client credentials (private-key JWT or secret), the device flow, refresh. Errors are in OAuth's words."""
    response.headers["Cache-Control"] = "no-store"
    service, correlation_id = platform_of(request).oauth, str(request.state.correlation_id)
    if grant_type == DEVICE_CODE:
        return await service.exchange_device(
            _needed("client_id", client_id), _needed("device_code", device_code), correlation_id
        )
    if grant_type == REFRESH_TOKEN:
        return await service.refresh(_needed("refresh_token", refresh_token), correlation_id)
    if grant_type != CLIENT_CREDENTIALS:
        raise Refusal(Code.UNSUPPORTED_GRANT_TYPE, f"this platform knows no grant {grant_type!r}")
    basic = _basic_credentials(request)
    if [basic is not None, client_secret is not None, client_assertion is not None].count(True) != 1:
        detail = "show one of: a client_assertion, a client_secret, HTTP basic"
        raise Refusal(Code.INVALID_CREDENTIALS, detail)
    if client_assertion is not None:
        if client_assertion_type != ASSERTION_TYPE:
            raise Refusal(Code.INVALID_REQUEST, f"client_assertion_type must be {ASSERTION_TYPE}")
        return await service.client_with_assertion(client_assertion, correlation_id)
    if basic is not None:
        return await service.client_with_secret(*basic, correlation_id)
    return await service.client_with_secret(
        _needed("client_id", client_id), _needed("client_secret", client_secret), correlation_id
    )


def _needed(name: str, value: str | None) -> str:
    if not value:
        raise Refusal(Code.INVALID_REQUEST, f"{name} is missing")
    return value


def _basic_credentials(request: Request) -> tuple[str, str] | None:
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        id, _, secret = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeError) as error:
        raise Refusal(Code.INVALID_CREDENTIALS, "the Authorization header cannot be read") from error
    return unquote(id), unquote(secret)


@routes.post("/oauth/device_authorization", Permission.ANONYMOUS, response_model=DeviceAuthorization)
async def start_device_authorization(request: Request, response: Response, client_id: ClientId) -> DeviceAuthorization:
    """For a command line: a code that a person approves in their browser (RFC 8628)."""
    platform = platform_of(request)
    platform.limits.logins.take(f"device/{current_origin.get().group}")
    response.headers["Cache-Control"] = "no-store"
    return await platform.oauth.start_device(client_id)


@routes.get("/oauth/device", Permission.PERSON, response_model=DeviceRequest)
async def get_device_request(ctx: Ctx, user_code: Annotated[str, Query(max_length=20)]) -> DeviceRequest:
    """Which program waits for the approval of this code."""
    ctx.platform.limits.logins.take(f"user_code/{ctx.caller.id}")
    with ctx.platform.oauth.typing_code(ctx.caller, ctx.correlation_id):
        async with ctx.read() as tx:
            return await oauth.get_device_request(tx, user_code)


@routes.post("/oauth/device/approve", Permission.PERSON, response_model=DeviceRequest)
async def approve_device(ctx: Ctx, body: DeviceDecision) -> Response:
    """The command line that shows this code is logged in as the caller."""
    return await _decide(ctx, body, DeviceStatus.APPROVED)


@routes.post("/oauth/device/deny", Permission.PERSON, response_model=DeviceRequest)
async def deny_device(ctx: Ctx, body: DeviceDecision) -> Response:
    return await _decide(ctx, body, DeviceStatus.DENIED)


async def _decide(ctx: Ctx, body: DeviceDecision, status: DeviceStatus) -> Response:
    # A code is short: nobody may try many.
    ctx.platform.limits.logins.take(f"user_code/{ctx.caller.id}")
    with ctx.platform.oauth.typing_code(ctx.caller, ctx.correlation_id):
        return await ctx.mutate(lambda tx: oauth.decide_device(tx, ctx.caller, body.user_code, status))


@routes.post("/oauth/revoke", Permission.ANONYMOUS)
async def revoke_token(
    request: Request, token: Annotated[str, Form(min_length=1, max_length=4_000)], token_type_hint: Text = None
) -> Response:
    """End the login behind a refresh token or an access token. An unknown token is fine, too (RFC 7009)."""
    await platform_of(request).oauth.revoke(token, str(request.state.correlation_id))
    return JSONResponse({}, headers={"Cache-Control": "no-store"})


@well_known.get("/oauth-authorization-server", Permission.ANONYMOUS, response_model=AuthorizationServerMetadata)
async def get_authorization_server_metadata(request: Request) -> AuthorizationServerMetadata:
    url = platform_of(request).oauth.public_url
    return AuthorizationServerMetadata(
        issuer=url,
        token_endpoint=f"{url}{API_PREFIX}/oauth/token",
        device_authorization_endpoint=f"{url}{API_PREFIX}/oauth/device_authorization",
        revocation_endpoint=f"{url}{API_PREFIX}/oauth/revoke",
        jwks_uri=f"{url}/.well-known/jwks.json",
        response_types_supported=[],
        grant_types_supported=[CLIENT_CREDENTIALS, DEVICE_CODE, REFRESH_TOKEN],
        token_endpoint_auth_methods_supported=["private_key_jwt", "client_secret_basic", "client_secret_post", "none"],
        token_endpoint_auth_signing_alg_values_supported=ALGORITHMS,
        revocation_endpoint_auth_methods_supported=["none"],
    )


@well_known.get("/jwks.json", Permission.ANONYMOUS, response_model=JsonWebKeySet)
async def get_public_keys(request: Request) -> JsonWebKeySet:
    """Publish the keys by which others verify our tokens."""
    return platform_of(request).tokens.keys.public_keys()
