"""Texts that look like a secret: where they are reported, and that they are never repeated."""

import pytest

from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.evidence import check_shown, find_secret

SECRETS = {
    "-----BEGIN OPENSSH PRIVATE KEY-----": "a private key",
    "x -----BEGIN PRIVATE KEY-----": "a private key",
    "gpuaas-join-" + "a" * 20: "a token of this platform",
    "gpuaas-secret-" + "B_-9" * 5: "a token of this platform",
    "eyJhbGciOiJF.eyJzdWIiOiJ1c3I." + "s" * 16: "a signed token",
    "token hvs." + "A1" * 12: "a token of a secrets server",
    "Authorization: Bearer " + "a.b-" * 8: "a bearer token",
    "AKIA" + "A1B2" * 4: "an access key",
    "ghp_" + "a1" * 18: "an access key",
}
HARMLESS = [
    "-----BEGIN PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----",
    "gpuaas-join-token",
    "eyJhbGciOiJF",
    "words.that.have.points.in.them",
    "hvs.short",
    "Bearer of good news",
    "XAKIA" + "A1B2" * 4,
    "AKIA" + "A1B2" * 5,
    "aghp_" + "a1" * 18,
    "sha256:" + "a" * 64,
    "",
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_one(text: str) -> None:
    assert find_secret(text, "/x") == ("/x", SECRETS[text])


@pytest.mark.parametrize("text", HARMLESS)
def test_what_does_not(text: str) -> None:
    assert find_secret({text: [text]}) is None


@pytest.mark.parametrize(
    ("hide", "pointer"),
    [
        (lambda secret: {"a": [1, {"b": secret}]}, "/r/a/1/b"),
        (lambda secret: {secret: 1}, "/r/(key)"),
        (lambda secret: {"a": {secret: 1}}, "/r/a/(key)"),
        (lambda secret: [None, True, 1.5, secret], "/r/3"),
        (lambda secret: {"k" * 100: secret}, "/r/" + "k" * 60),
    ],
)
def test_it_is_found_wherever_it_is_and_never_quoted(hide: object, pointer: str) -> None:
    assert callable(hide)
    for secret in SECRETS:
        found = find_secret(hide(secret), "/r")
        assert found == (pointer, SECRETS[secret])
        with pytest.raises(Refusal) as refused:
            check_shown(hide(secret), 10_000, "the result", "/r")
        assert (refused.value.code, refused.value.errors[0].pointer) == (Code.SECRET_SUSPECTED, pointer)
        assert secret not in refused.value.detail


def test_what_is_shown_has_a_limit() -> None:
    check_shown("x" * 98, 100, "the result", "/r")
    with pytest.raises(Refusal, match="the result is limited to 100 bytes") as refused:
        check_shown("x" * 99, 100, "the result", "/r")
    assert refused.value.code == Code.TOO_LARGE
