"""`gpuaas receipt verify` without a platform: whom it trusts, and its exit codes."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuaas_cli.commands import receipt
from gpuaas_cli.errors import FAILURE, NOT_FOUND, UNTRUSTED_KEY, USAGE, WORK_FAILED, CliError
from gpuaas_cli.main import run
from gpuaas_cli.options import Options
from gpuaas_contract.receipts import ReceiptKey, ReceiptSignature, canonical_bytes, file_bytes, key_id_of
from gpuaas_sdk.profile import receipt_keys
from gpuaas_sdk.signed_receipts import pem_of

from .cli_test_platform import INSTANCE, StubPlatform

URL = "http://127.0.0.1:1"
OPTIONS = Options(api_url=URL)
KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUAAS_CONFIG", str(tmp_path / "config.yaml"))


def write(directory: Path, **changes: Any) -> Path:
    document = {
        "format": "gpuaas-teardown-receipt/1",
        "instance": {"id": "ins_1", "name": "first"},
        "tenant": {"id": "ten_1", "name": "acme"},
        "requested_by": "usr_1",
        "probes": [],
        "probe_count": 0,
        "left": [],
        "unverified": [],
        "verdict": "nothing_left",
        "signed_by": {"key_id": key_id_of(PUBLIC)},
        **changes,
    }
    value = base64.b64encode(KEY.sign(canonical_bytes(document))).decode()
    signature = ReceiptSignature(algorithm="ed25519", key_id=key_id_of(PUBLIC), value=value)
    file = directory / "receipt.json"
    file.write_bytes(file_bytes(document, signature))
    return file


def code_of(file: Path, **more: Any) -> int:
    try:
        receipt.verify(file, options=OPTIONS, **more)
    except CliError as error:
        return error.code
    return 0


def test_only_saved_or_given_keys_are_trusted(tmp_path: Path) -> None:
    file = write(tmp_path)
    with pytest.raises(CliError, match="signed by a key that you do not trust") as refused:
        receipt.verify(file, options=OPTIONS)
    assert refused.value.code == UNTRUSTED_KEY
    with pytest.raises(CliError, match="signed by a key that you do not trust"):
        receipt.verify(file, options=Options())
    pem = tmp_path / "key.pem"
    pem.write_text(pem_of(PUBLIC))
    assert code_of(file, key=pem) == 0
    encoded = base64.b64encode(PUBLIC).decode()
    published = ReceiptKey(
        key_id=key_id_of(PUBLIC), version="1", algorithm="ed25519", public_key=encoded, created_at=datetime.now(UTC)
    )
    assert [receipt_keys.save(URL, [published]), receipt_keys.save(URL + "/", [published])] == [1, 0]
    assert code_of(file) == 0
    assert receipt_keys.path().stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "no key", "AAAA", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_a_file_without_a_key_is_a_mistake_of_the_caller(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    assert code_of(write(tmp_path), key=tmp_path / "key") == USAGE


def test_each_refusal_has_its_exit_code(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(base64.b64encode(PUBLIC).decode())
    assert code_of(write(tmp_path), key=key, instance="second") == FAILURE
    assert code_of(write(tmp_path), key=key, instance="first") == 0
    assert code_of(write(tmp_path, verdict="unverified", unverified=["x"]), key=key) == WORK_FAILED
    assert code_of(write(tmp_path, probe_count=3), key=key) == FAILURE
    assert code_of(tmp_path / "absent", key=key) == USAGE
    file = write(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text())))
    assert code_of(file, key=key) == FAILURE


def test_saved_keys_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    receipt_keys.path().write_text('{"x": [1]}')
    with pytest.raises(Exception, match="cannot read"):
        receipt.verify(write(tmp_path), options=OPTIONS)


MEMBER = "mem_00000000000000000000000001"


def test_the_receipt_of_a_member_that_was_written_off(
    logged_in: StubPlatform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"member": {"id": MEMBER, "component_key": "tail"}, "verdict": "unverified"}
    file = json.loads(write(tmp_path, **about, unverified=["member was written off"]).read_text())
    answer = {"instance_id": INSTANCE["id"], "state": "signed", **file}
    logged_in.answer(f"GET /v1/app-instances/{INSTANCE['id']}", INSTANCE)
    logged_in.answer(f"GET /v1/members/{MEMBER}/receipt", answer)
    out = tmp_path / "member.json"
    words = ["receipt", "export", str(INSTANCE["id"]), "--member", MEMBER, "--file", str(out)]
    assert run(words) == 0
    key = tmp_path / "key.pem"
    key.write_text(pem_of(PUBLIC))
    capsys.readouterr()
    assert run(["receipt", "verify", str(out), "--key", str(key)]) == WORK_FAILED
    assert f"the receipt of member {MEMBER} of first (ins_1) is genuine" in capsys.readouterr().out
    assert run(words) == USAGE, "an exported file is not overwritten"
    # One of another instance is not passed off as one of this.
    logged_in.answer(f"GET /v1/members/{MEMBER}/receipt", {**answer, "instance_id": "ins_other"})
    assert run([*words[:-1], str(tmp_path / "other.json")]) == NOT_FOUND
    assert "is no member of first" in capsys.readouterr().err
    assert not (tmp_path / "other.json").exists()
