"""Which authorities a client trusts, and which names are the machine itself."""

import ssl
from pathlib import Path

import pytest

from gpuaas_contract.trust import TrustError, ca_file_of, client_context, explain, is_loopback, parse_certificate_pair


@pytest.fixture(autouse=True)
def _no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUAAS_CA_FILE", raising=False)


def test_nothing_is_loaded_where_no_certificate_is_shown(tmp_path: Path) -> None:
    assert client_context("http://x", tmp_path / "missing") is client_context("ws://x")
    for url in ("https://x", "HTTPS://x", "wss://x"):
        context = client_context(url)
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    empty, wrong = tmp_path / "empty", tmp_path / "wrong"
    empty.touch()
    wrong.write_bytes(b"\0\xffnot a certificate")
    for file in (tmp_path / "missing", tmp_path, empty, wrong, Path("a\0b"), tmp_path / ("x" * 300)):
        with pytest.raises(TrustError, match=r"GPUAAS_CA_FILE") as refused:
            client_context("https://x", file)
        assert len(str(refused.value)) < 600


def test_a_given_file_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ca_file_of(None) is None
    monkeypatch.setenv("GPUAAS_CA_FILE", "")
    assert ca_file_of("") is None
    monkeypatch.setenv("GPUAAS_CA_FILE", "/of/environment")
    monkeypatch.chdir(tmp_path)
    assert ca_file_of(None) == Path("/of/environment")
    assert ca_file_of("given.pem") == tmp_path / "given.pem"


def test_only_errors_about_tls_are_explained() -> None:
    assert explain(OSError("connection refused")) is None
    assert explain(ssl.SSLError(1, "eof")) is None
    assert explain(ssl.SSLCertVerificationError(1, "made by hand")) is not None
    looped = OSError("a")
    looped.__cause__ = looped
    assert explain(looped) is None


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[
            (name, True)
            for name in ("localhost", "LocalHost.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")
        ],
        *[
            (name, False)
            for name in ("", "localhost.example", "mylocalhost", "0.0.0.0", "::", "10.0.0.1", "127.1", "x y")
        ],
    ],
)
def test_loopback_names(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_pair_is_two_whole_paths() -> None:
    assert parse_certificate_pair("/a/c.pem:/a/k.pem") == (Path("/a/c.pem"), Path("/a/k.pem"))
    for wrong in ("", "/a", "a:b", "/a:b", "/a:/b:/c", ":", "/a:"):
        with pytest.raises(ValueError, match="GPUAAS_TLS"):
            parse_certificate_pair(wrong)
