"""The embedded authority, and what the API says of a certificate before it uses it."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from gpuaas_platform.core.certificates import CertificateError, CertificateFiles, load
from gpuaas_platform.settings import ServingSettings
from gpuaas_stack import platform_services
from gpuaas_stack.authority import Authority
from gpuaas_stack.errors import StackError
from gpuaas_stack.packs import find_packs
from gpuaas_stack.registry import Registry
from gpuaas_stack.settings import Settings

NOW = datetime.now(UTC)
PACK = """
slug: sample
manifest: manifest.yaml
bundle: [sh, -c, 'echo', sh, "{output}"]
controller: [python3, -m, sample]
"""


def certificate_in(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificates(path.read_bytes())[0]


def files(pair: Path, key: Path | None = None) -> CertificateFiles:
    return CertificateFiles(pair, key or pair)


def test_the_authority_is_made_once_and_its_keys_are_private(state_dir: Path) -> None:
    authority = Authority(state_dir / "tls", ["127.0.0.1", "localhost"])
    assert authority.ensure(), "it is new"
    before = {path: path.read_bytes() for path in authority.directory.iterdir()}
    assert not authority.ensure()
    assert {path: path.read_bytes() for path in authority.directory.iterdir()} == before
    for path in authority.directory.iterdir():
        private = b"PRIVATE KEY" in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if private else 0o644), path
    assert authority.pair.owner() == "gpuaas-api"
    load(files(authority.pair), ["127.0.0.1"])


def test_a_certificate_is_renewed_in_time_by_the_same_authority(state_dir: Path) -> None:
    authority = Authority(state_dir / "tls", ["localhost"])
    authority.ensure(NOW)
    trusted, first = authority.ca_file.read_bytes(), authority.pair.read_bytes()
    assert not authority.renew(NOW + timedelta(days=59))
    assert authority.renew(NOW + timedelta(days=61))
    assert authority.pair.read_bytes() != first
    assert certificate_in(authority.pair).not_valid_after_utc > NOW + timedelta(days=150)
    assert not authority.ensure(NOW + timedelta(days=61))
    assert authority.ca_file.read_bytes() == trusted
    assert authority.ensure(NOW + timedelta(days=3400)), "an authority that ends within a year is replaced"
    assert authority.ca_file.read_bytes() != trusted
    certificate_in(authority.pair).verify_directly_issued_by(certificate_in(authority.ca_file))


def test_a_certificate_follows_the_names_and_survives_lost_files(state_dir: Path) -> None:
    Authority(state_dir / "tls", ["localhost"]).ensure()
    authority = Authority(state_dir / "tls", ["localhost", "gpuaas.example"])
    assert not authority.ensure()
    load(files(authority.pair), ["gpuaas.example"])
    authority.ca_file.unlink()
    authority.pair.unlink()
    assert not authority.ensure()
    load(files(authority.pair), ["localhost"])
    authority.pair.write_text("not a certificate")
    assert not authority.ensure()
    load(files(authority.pair), ["localhost"])
    (authority.directory / "authority.pem").write_text("not a certificate")
    with pytest.raises(StackError, match=r"authority.pem: it holds no key .* Restore it"):
        authority.ensure()


def test_what_is_wrong_with_a_certificate_is_said(state_dir: Path) -> None:
    authority = Authority(state_dir / "tls", ["*.gpuaas.example", "10.0.0.1"])
    authority.ensure()
    pair, broken, locked = authority.pair, state_dir / "broken.pem", state_dir / "locked.pem"
    other = Authority(state_dir / "other", ["*.gpuaas.example"])
    other.ensure()
    broken.write_text("nothing")
    key = load_pem_private_key(pair.read_bytes(), password=None)
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))

    def words(pair: CertificateFiles, name: str = "api.gpuaas.example", now: datetime = NOW) -> str:
        with pytest.raises(CertificateError) as refused:
            load(pair, [name], now)
        return str(refused.value)

    for name in ("api.gpuaas.example", "API.gpuaas.example.", "10.0.0.1"):
        load(files(pair), [name])
    for name in ("gpuaas.example", "a.b.gpuaas.example", "127.0.0.1", "example"):
        assert f"clients ask for {name}" in words(files(pair), name)
    assert "it expired at" in words(files(pair), now=NOW + timedelta(days=91))
    assert "Is the clock right?" in words(files(pair), now=NOW - timedelta(days=1))
    assert "cannot read the certificate" in words(files(state_dir / "missing", pair))
    assert "cannot read the key" in words(files(pair, state_dir / "missing"))
    assert "cannot read the certificate" in words(files(state_dir))
    assert "no certificate in PEM format" in words(files(broken, pair))
    assert "not a key in PEM format" in words(files(pair, broken))
    assert "does not belong to the certificate" in words(files(pair, other.pair))
    assert "has a passphrase" in words(files(pair, locked))


def test_the_stack_refuses_a_certificate_that_the_api_cannot_use(state_dir: Path) -> None:
    authority = Authority(state_dir / "tls", ["localhost"])
    authority.ensure()
    chosen = Settings(state_dir=state_dir, tls=f"{authority.pair}:{authority.pair}", ca_file=authority.ca_file)
    with pytest.raises(StackError, match=r"cannot serve HTTPS: .* clients ask for 127.0.0.1"):
        platform_services.check_certificate(chosen)
    named = chosen.model_copy(update={"api_name": "localhost"})
    platform_services.check_certificate(named)
    root_only = state_dir / "root.pem"
    root_only.write_bytes(authority.pair.read_bytes())
    root_only.chmod(0o600)
    hidden = named.model_copy(update={"tls": f"{root_only}:{root_only}"})
    with pytest.raises(StackError, match=r"cannot read the certificate .*root.pem: Permission denied"):
        platform_services.check_certificate(hidden)
    with pytest.raises(StackError, match="cannot use GPUAAS_CA_FILE"):
        platform_services.check_certificate(named.model_copy(update={"ca_file": root_only}))


def test_one_setting_switches_every_address() -> None:
    plain = Settings(tls="off", state_dir=Path("/s"))
    assert plain.api_url == "http://127.0.0.1:8470"
    assert (plain.trusted_file, plain.certificate_pair, plain.public_address) == (None, None, None)
    assert Settings(tls="", state_dir=Path("/s")).api_url == plain.api_url
    embedded = Settings(tls="embedded", state_dir=Path("/s"), api_host="0.0.0.0")
    assert embedded.api_url == "https://127.0.0.1:8470"
    assert embedded.public_address == embedded.api_url
    assert embedded.trusted_file == Path("/s/tls/ca.pem")
    assert embedded.certificate_pair == "/s/tls/server.pem:/s/tls/server.pem"
    own = Settings(tls="/c:/k", api_name="gpuaas.example", public_url="https://gpu.example/", ca_file=Path("/ca"))
    assert (own.api_url, own.public_address) == ("https://gpuaas.example:8470", "https://gpu.example")
    assert (own.trusted_file, own.certificate_pair) == (Path("/ca"), "/c:/k")
    assert Settings(tls="off", ca_file=Path("/ca")).trusted_file is None
    assert Settings(api_host="::1", tls="embedded").api_url == "https://[::1]:8470"
    assert Settings(api_host="10.0.0.1").is_exposed
    assert Settings(api_host="0.0.0.0").is_exposed
    assert not Settings(api_host="localhost").is_exposed
    assert not Settings(api_host="0.0.0.0", tls="embedded").is_exposed


@pytest.mark.parametrize("wrong", ["yes", "/one", "cert.pem:key.pem", "/a:/b:/c", "/a:", ":/b", "/a\0:/b", "x" * 5000])
def test_a_wrong_setting_is_named(wrong: str) -> None:
    for settings in (Settings, ServingSettings):
        with pytest.raises(ValidationError, match=r"GPUAAS_TLS is .*: write off, embedded, or"):
            settings(tls=wrong)


def test_other_wrong_settings_are_named() -> None:
    with pytest.raises(ValidationError, match="gpuaas-stack's"):
        ServingSettings(tls="embedded")
    for name in ("a b", "-x", "a/b", "x" * 300, "é"):
        with pytest.raises(ValidationError, match="api_name"):
            Settings(api_name=name)
    for address in ("gpuaas.example", "ftp://x", "https://", "https://me@x", "https://x?y"):
        with pytest.raises(ValidationError, match="GPUAAS_PUBLIC_URL"):
            Settings(public_url=address)
    for seconds in ("0", "-1", "many", "nan"):
        with pytest.raises(ValidationError, match="request_header_seconds"):
            ServingSettings(request_header_seconds=seconds)


def test_services_and_kept_accounts_follow_the_address(state_dir: Path) -> None:
    pack_dir = state_dir / "packs" / "sample"
    pack_dir.mkdir(parents=True)
    (pack_dir / "pack.yaml").write_text(PACK)
    (pack_dir / "manifest.yaml").write_text("name: sample\n")
    (pack,) = find_packs((pack_dir.parent,))
    plain = Settings(state_dir=state_dir, gpu_stand_ins=0)
    platform_services.write_service_account(plain, "sample", "sva_1", "key")
    account = plain.service_account_file("sample")
    for tls in ("embedded", "embedded", "off", "embedded", "off"):
        chosen = plain.model_copy(update={"tls": tls})
        trusted = None if tls == "off" else str(chosen.trusted_file)
        for service in (platform_services.controller_service(chosen, pack), platform_services.agent_service(chosen)):
            assert service.env["GPUAAS_API_URL"] == chosen.api_url
            assert service.env.get("GPUAAS_CA_FILE") == trusted
        kept = json.loads(account.read_text())
        assert (kept["service_account_id"], kept["private_key_pem"]) == ("sva_1", "key")
        assert (kept["api_url"], kept.get("ca_file")) == (chosen.api_url, trusted)
        assert stat.S_IMODE(account.stat().st_mode) == 0o600
        if tls == "embedded":
            chosen.tls_dir.mkdir(exist_ok=True)
            (chosen.tls_dir / "ca.pem").write_text("one authority")
            before = platform_services.agent_service(chosen)
            (chosen.tls_dir / "ca.pem").write_text("another authority")
            assert platform_services.agent_service(chosen) != before, "it is started anew"
        realm = Registry(chosen.registry_dir, 1, chosen.api_url).service().env["REGISTRY_AUTH_TOKEN_REALM"]
        assert realm == f"{chosen.api_url}/v1/registry/token"
