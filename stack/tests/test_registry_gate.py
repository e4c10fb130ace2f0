"""The gate of the registry reads a request as the registry itself does."""

from __future__ import annotations

import pytest
from tests.support.certificates import certificate

from gpuaas_stack.registry_gate import Keys, RefusedError, read_head


def test_a_request_is_passed_on_and_the_connection_ends_with_it() -> None:
    head = read_head(
        b"GET /v2/ HTTP/1.1\r\nHost: one\r\nConnection: keep-alive\r\nUpgrade: h2c\r\n"
        b"authorization:  bEARER abc \r\n\r\n"
    )
    assert head.token == "abc"
    assert head.sent == (b"GET /v2/ HTTP/1.1\r\nHost: one\r\nauthorization:  bEARER abc \r\nConnection: close\r\n\r\n")
    assert head.without_token == b"GET /v2/ HTTP/1.1\r\nHost: one\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("shown", [b"Basic abc", b"Bearer", b"Bearer a b", b"Bearer  abc", b""])
def test_what_the_registry_takes_for_no_token_is_none(shown: bytes) -> None:
    assert read_head(b"GET / HTTP/1.1\r\nAuthorization: " + shown + b"\r\n\r\n").token is None


@pytest.mark.parametrize(
    "hostile",
    [
        b"PRI * HTTP/2.0\r\n\r\n",
        b"GET / HTTP/0.9\r\n\r\n",
        b"GET http://elsewhere/ HTTP/1.1\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: one\nAuthorization: Bearer a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: one\r\n Authorization: Bearer a\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization : Bearer a\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_two_readers_could_read_differently_is_refused(hostile: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        read_head(hostile)
    assert refused.value.status == 400


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "e30.e30.", "bnVsbA.bnVsbA.bnVsbA", "W10.W10.W10", "é.é.é"])
def test_what_is_no_token_of_the_platform_says_nothing(token: str) -> None:
    assert Keys(certificate().encode()).read(token) is None
