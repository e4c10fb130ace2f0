"""Access tokens: what is believed, what is not, and the key behind them."""

import asyncio
import hashlib
import hmac
import secrets
import time
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from gpuaas_sdk.client import GpuaasClient
from gpuaas_stack.settings import Settings
from tests.support.database import audited
from tests.support.processes import ApiProcess
from tests.support.services import openbao_of
from tests.support.tokens import SigningKey, aged, decode, encode
from tests.support.world import World, make_key, sign_assertion


async def status_of(settings: Settings, token: str, url: str | None = None) -> int:
    async with httpx.AsyncClient(base_url=url or settings.api_url) as http:
        answer = await http.get("/v1/principal", headers={"Authorization": f"Bearer {token}"})
        if answer.status_code == 401:
            assert answer.json()["code"] == "unauthenticated"
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"] == "Bearer"
        return answer.status_code


def forgeries(key: SigningKey, good: str) -> dict[str, str]:
    """Each wrong in one thing only."""
    header, claims = decode(good)
    head, body, signature = good.split(".")
    public = key.public_keys()[header["kid"]]
    stranger, _ = make_key()

    def claimed(**changes: Any) -> str:
        return key.sign(header, {**claims, **changes})

    def without(name: str) -> str:
        return key.sign(header, {k: v for k, v in claims.items() if k != name})

    def headed(**changes: Any) -> str:
        return key.sign({k: v for k, v in {**header, **changes}.items() if v is not None}, claims)

    def hs256(secret: bytes) -> str:
        signing_input = f"{encode({**header, 'alg': 'HS256'})}.{body}"
        return f"{signing_input}.{encode(hmac.new(secret, signing_input.encode(), hashlib.sha256).digest())}"

    pem = b"-----BEGIN PUBLIC KEY-----\n" + public + b"\n-----END PUBLIC KEY-----\n"
    return {
        "alg none": f"{encode({**header, 'alg': 'none'})}.{body}.",
        "alg none in capitals": f"{encode({**header, 'alg': 'NONE'})}.{body}.",
        "alg none with a signature": f"{encode({**header, 'alg': 'none'})}.{body}.{signature}",
        "HS256 with the public key": hs256(public),
        "HS256 with the public key in PEM": hs256(pem),
        "an algorithm that nobody knows": headed(alg="ML-DSA-999"),
        "no algorithm": headed(alg=None),
        "signed by somebody else": sign_assertion(stranger, claims["sub"], "gpuaas", **claims),
        "signature of another token": f"{claimed(jti='x').rsplit('.', 1)[0]}.{signature}",
        "cut signature": good[:-6],
        "no signature": f"{head}.{body}.",
        "changed claims": f"{head}.{encode({**claims, 'sub': 'usr_00000000000000000000000000'})}.{signature}",
        "wrong audience": claimed(aud="elsewhere"),
        "no audience": without("aud"),
        "audiences without us": claimed(aud=["a", "b"]),
        "wrong issuer": claimed(iss="elsewhere"),
        "no issuer": without("iss"),
        "expired": key.sign(header, aged(claims, 60)),
        "no expiry": without("exp"),
        "expiry that is no time": claimed(exp="tomorrow"),
        "expiry that is no number": claimed(exp=float("nan")),
        "endless": claimed(exp=float("inf")),
        "from the future": claimed(iat=int(time.time()) + 600),
        "no time of issue": without("iat"),
        "no subject": without("sub"),
        "a subject that is no text": claimed(sub=["usr"]),
        "a subject of no kind": claimed(sub="root"),
        "a user that is not": claimed(sub="usr_00000000000000000000000000"),
        "no epoch": without("epoch"),
        "another epoch": claimed(epoch=claims["epoch"] + 1),
        "no login": without("sid"),
        "a login that is not": claimed(sid="ses_00000000000000000000000000"),
        "a login that is no text": claimed(sid={"a": 1}),
        "of another type": headed(typ="JWT"),
        "of no type": headed(typ=None),
        "no key named": headed(kid=None),
        "an unknown key": headed(kid="999"),
        "a key that is no text": headed(kid=["1"]),
        "a path for a key": headed(kid="../../etc/passwd"),
        "an unknown critical header": headed(crit=["x"], x=1),
        "two parts": f"{head}.{body}",
        "five parts": "a.b.c.d.e",
        "not base64": "ä.ö.ü",
        "far too deep": f"{encode(b'[' * 20_000)}.{body}.{signature}",
        "a list": f"{encode(b'[1]')}.{body}.{signature}",
    }


async def test_every_kind_of_forged_token_is_refused(settings: Settings, admin: GpuaasClient) -> None:
    key = SigningKey(settings)
    good = (await admin.fetch_token()).access_token
    header, claims = decode(good)
    # The means to forge is right: with nothing changed, the platform believes it.
    assert await status_of(settings, key.sign(header, claims)) == 200
    believed = {
        what: status
        for what, token in forgeries(key, good).items()
        if (status := await _raw_status(settings, token)) != 401
    }
    assert believed == {}
    assert await status_of(settings, good) == 200


async def _raw_status(settings: Settings, token: str) -> int:
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        headers = {b"Authorization": f"Bearer {token}".encode()}
        return (await http.get("/v1/principal", headers=headers)).status_code


async def test_an_assertion_is_no_access_token_and_an_access_token_is_no_assertion(
    settings: Settings, world: World
) -> None:
    private, public = make_key()
    account = await world.admin.service_accounts.create(world.project.id, "confused", public)
    assertion = sign_assertion(private, account.id, "gpuaas")
    assert await status_of(settings, assertion) == 401
    token = (await world.controller.fetch_token()).access_token
    form = {
        "grant_type": "client_credentials",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": token,
    }
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        answer = await http.post("/v1/oauth/token", data=form)
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")


async def test_unknown_keys_do_not_hammer_the_secrets_server(settings: Settings, admin: GpuaasClient) -> None:
    key = SigningKey(settings)
    header, claims = decode((await admin.fetch_token()).access_token)
    audit = openbao_of(settings).directory / "audit" / "audit.log"

    def questions() -> int:
        return audit.read_text().count('"path":"transit/keys/gpuaas-tokens"')

    tokens = [key.sign({**header, "kid": f"{secrets.token_hex(4)}"}, claims) for _ in range(3)]
    before, started = questions(), time.monotonic()
    statuses = await asyncio.gather(*(status_of(settings, tokens[n % 3]) for n in range(60)))
    assert set(statuses) == {401}
    # Each question is two lines: that it was asked, and the answer.
    allowed = 2 * (1 + int((time.monotonic() - started) / 5) + 1)
    assert questions() - before <= allowed


async def test_the_key_rotates_and_what_it_signed_before_stays_good(settings: Settings, admin: GpuaasClient) -> None:
    old = (await admin.fetch_token()).access_token
    old_kid = decode(old)[0]["kid"]
    with ApiProcess(settings, token_key_days="0.000001").serving() as other:
        rotated = await World.until(
            lambda: _newer_kid(admin, old_kid), "tokens of the first process are signed with the new version", 40
        )
        assert await status_of(settings, old) == 200
        assert await status_of(settings, old, other) == 200
        for url in (settings.api_url, other):
            assert await status_of(settings, rotated, url) == 200
            async with httpx.AsyncClient(base_url=url) as http:
                keys = (await http.get("/.well-known/jwks.json")).json()
            assert {old_kid, decode(rotated)[0]["kid"]} <= {key["kid"] for key in keys["keys"]}
            for token in (old, rotated):
                known = KeySet.import_key_set(keys)
                assert jwt.decode(token, known, algorithms=["Ed25519"]).claims["aud"] == "gpuaas"
    assert audited(settings, "token_key.rotate", "platform")


async def _newer_kid(admin: GpuaasClient, old_kid: str) -> str | None:
    token = (await admin.fetch_token()).access_token
    return token if int(decode(token)[0]["kid"]) > int(old_kid) else None


async def test_the_metadata_says_where_everything_is(settings: Settings) -> None:
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        metadata = (await http.get("/.well-known/oauth-authorization-server")).json()
        assert metadata["issuer"] == settings.api_url
        for name in ("token_endpoint", "device_authorization_endpoint", "revocation_endpoint"):
            assert (await http.post(metadata[name])).status_code == 400
        assert (await http.get(metadata["jwks_uri"])).json()["keys"]


@pytest.mark.parametrize("audience", ["gpuaas", "{url}", "{url}/v1/oauth/token"])
async def test_an_assertion_may_name_the_issuer_or_the_token_endpoint(
    settings: Settings, world: World, audience: str
) -> None:
    private, public = make_key()
    account = await world.admin.service_accounts.create(world.project.id, f"a{secrets.token_hex(4)}", public)
    form = {
        "grant_type": "client_credentials",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": sign_assertion(private, account.id, audience.format(url=settings.api_url)),
    }
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        answer = await http.post("/v1/oauth/token", data=form)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert set(answer.json()) == {"access_token", "token_type", "expires_in"}
