"""Logging in over TLS: what is trusted, what a context keeps, and what is said where it is not trusted."""

import io
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gpuaas_cli.main import run
from gpuaas_sdk.profile import config

from .cli_test_platform import StubPlatform, serve

TOKEN = {"access_token": "t0ken", "token_type": "Bearer", "expires_in": 3600}


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))


def make_certificate(path: Path, *, address: str = "127.0.0.1", days: int = 1) -> Path:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "platform")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=10))
    builder = builder.not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
    made = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made)
    return path


@contextmanager
def platform_with(certificate: Path) -> Iterator[StubPlatform]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serve(context) as stub:
        stub.answer("POST /v1/auth/login", TOKEN)
        stub.answer("GET /v1/tenants", {"items": []})
        yield stub


def login(platform: StubPlatform, *more: str) -> int:
    return run(["login", "--api-url", platform.url, "--email", "a@b", "--password-stdin", *more])


def test_a_context_keeps_whom_to_trust(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificate(home / "ca.pem")
    with platform_with(home / "ca.pem") as platform:
        assert login(platform, "--ca-file", "ca.pem") == 0
        assert config.load().contexts["default"].ca_file == str(home / "ca.pem"), "the whole path"
        monkeypatch.chdir("/")
        assert run(["tenant", "list"]) == 0
        monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
        assert login(platform) == 0, "to log in again needs no flag"
        assert config.load().contexts["default"].ca_file == str(home / "ca.pem")
        assert run(["context", "use", "--project", "research"]) == 0
        assert run(["tenant", "list"]) == 0
        assert run(["logout"]) == 0
        assert config.load().contexts["default"].ca_file == str(home / "ca.pem")


def test_the_environment_names_it_too_and_a_flag_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificate(home / "ca.pem")
    make_certificate(home / "other.pem")
    with platform_with(home / "ca.pem") as platform:
        monkeypatch.setenv("GPUAAS_CA_FILE", str(home / "other.pem"))
        assert login(platform) == 6
        monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
        assert login(platform, "--ca-file", str(home / "ca.pem")) == 0
        assert run(["tenant", "list"]) == 6, "the environment wins over the file"
        monkeypatch.setenv("GPUAAS_CA_FILE", "")
        assert run(["tenant", "list"]) == 0


def test_a_context_trusts_its_own_platform_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificate(home / "ca.pem")
    monkeypatch.setenv("GPUAAS_TOKEN", "t")
    with platform_with(home / "ca.pem") as platform, platform_with(home / "ca.pem") as stranger:
        assert login(platform, "--ca-file", "ca.pem") == 0
        assert run(["tenant", "list"]) == 0
        assert run(["tenant", "list", "--api-url", stranger.url]) == 6
        assert stranger.requests == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"days": -1}, "its certificate has expired"),
        ({"address": "10.0.0.1"}, "its certificate is for another name"),
    ],
)
def test_a_wrong_certificate_is_explained_and_nothing_is_sent(
    home: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], expected: str
) -> None:
    make_certificate(home / "ca.pem", **change)  # type: ignore[arg-type]
    with platform_with(home / "ca.pem") as platform:
        assert login(platform, "--ca-file", "ca.pem", "-o", "json") == 6
        said = json.loads(capsys.readouterr().err)
        assert expected in said["detail"]
        assert said["code"] == "untrusted"
        assert platform.requests == []


@pytest.mark.parametrize("wrong", ["missing.pem", "empty.pem", "."])
def test_a_file_that_cannot_be_used_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], platform: StubPlatform, wrong: str
) -> None:
    (home / "empty.pem").touch()
    secure = platform.url.replace("http:", "https:")
    assert run(["login", "--api-url", secure, "--email", "a@b", "--password-stdin", "--ca-file", wrong]) == 6
    assert str((home / wrong).absolute()) in capsys.readouterr().err
    assert platform.requests == []


def test_an_address_of_the_wrong_kind_is_explained(
    home: Path, capsys: pytest.CaptureFixture[str], platform: StubPlatform
) -> None:
    platform.url = platform.url.replace("http:", "https:")
    assert login(platform) == 6
    assert "does not speak TLS" in capsys.readouterr().err
    make_certificate(home / "ca.pem")
    with platform_with(home / "ca.pem") as secure:
        secure.url = secure.url.replace("https:", "http:")
        assert login(secure) == 6
        assert "begins with https://" in capsys.readouterr().err


def test_a_login_over_plain_http_to_another_machine_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, platform: StubPlatform
) -> None:
    platform.answer("POST /v1/auth/login", TOKEN)
    assert login(platform) == 0
    assert "warning" not in capsys.readouterr().err
    # An address of this machine that does not look like one.
    platform.url = platform.url.replace("127.0.0.1", "0.0.0.0")
    monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
    assert login(platform) == 0
    assert "plain http: your password and tokens can be read on the way" in capsys.readouterr().err
