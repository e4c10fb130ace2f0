"""Mistakes on this side are reported before the platform is asked, and before any package is fetched."""

import sys
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from gpuaas_contract.manifest import Manifest
from slurm_app import publishing
from slurm_app.bundle import ARTIFACT
from slurm_app.main import main

MANIFEST = Path(__file__).parents[1] / "manifest.yaml"
COSIGNS = "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nbm8=\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GPUAAS_API_URL", "GPUAAS_TOKEN", "GPUAAS_CONTEXT", publishing.PASSWORD_SETTING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUAAS_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def refused(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **environment: str) -> str:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    output = home / "b.tar"
    places = ["--output", str(output), "--dpkg-status", "/nowhere", "--cache", str(home / "cache")]
    monkeypatch.setattr(sys, "argv", ["slurm-app", "bundle", *places, *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not output.exists()
    assert not (home / "cache").exists()
    return str(caught.value.code)


def write_key(home: Path, password: str | None = None) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    protection = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
    (home / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
    return str(home / "key.pem")


def test_a_key_is_needed_and_only_for_publishing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(home, monkeypatch, "--publish") == "2"
    assert "--publish needs --key FILE" in capsys.readouterr().err
    assert refused(home, monkeypatch, "--key", "key.pem") == "2"
    assert "go with --publish" in capsys.readouterr().err


def test_a_file_that_is_no_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not a signing key" in refused(home, monkeypatch, "--publish", "--key", "/nowhere")
    assert "is not a signing key" in refused(home, monkeypatch, "--publish", "--key", str(MANIFEST))
    (home / "cosign.key").write_text(COSIGNS)
    words = ["--publish", "--key", str(home / "cosign.key")]
    assert "as cosign alone does it" in refused(home, monkeypatch, *words, GPUAAS_SIGN_KEY_PASSWORD="any")


def test_a_key_with_a_password(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--publish", "--key", write_key(home, "right")]
    assert "needs a password: give it in GPUAAS_SIGN_KEY_PASSWORD" in refused(home, monkeypatch, *words)
    wrong = refused(home, monkeypatch, *words, GPUAAS_SIGN_KEY_PASSWORD="wrong")
    assert "is not a signing key: Incorrect password" in wrong
    assert "no platform is known" in refused(home, monkeypatch, *words, GPUAAS_SIGN_KEY_PASSWORD="right")


def test_where_to_and_as_whom(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--publish", "--key", write_key(home)]
    assert "no platform is known" in refused(home, monkeypatch, *words)
    assert "no context 'lab'" in refused(home, monkeypatch, *words, "--context", "lab")
    nobody = ["--api-url", "http://127.0.0.1:1"]
    assert "you are not logged in to http://127.0.0.1:1" in refused(home, monkeypatch, *words, *nobody)
    away = refused(home, monkeypatch, *words, *nobody, GPUAAS_TOKEN="any")
    assert "cannot publish: " in away
    assert "next: give the same command again" in away


def test_it_publishes_what_the_manifest_names() -> None:
    manifest = Manifest.model_validate(yaml.safe_load(MANIFEST.read_text()))
    (slot,) = manifest.artifacts
    named = (publishing.APP, ARTIFACT, publishing.MEDIA_TYPE)
    assert (manifest.slug, slot.name, slot.media_type) == named
