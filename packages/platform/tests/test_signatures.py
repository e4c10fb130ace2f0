"""Which signatures verify an artifact, and why others do not."""

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpuaas_contract import oci
from gpuaas_contract.artifacts import KeyAlgorithm
from gpuaas_contract.problems import Code
from gpuaas_platform.artifacts.rules.signatures import PublicKey, Signature, find_signer, read_key
from gpuaas_platform.core.errors import Refusal

DIGEST = "sha256:" + "a" * 64
P256, ED25519 = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
TRUSTED: list[tuple[str, PublicKey]] = [("key_1", P256.public_key()), ("key_2", ED25519.public_key())]
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def payload(digest: str = DIGEST, kind: str = oci.SIGNATURE_TYPE) -> bytes:
    document: dict[str, Any] = {"critical": {"type": kind, "image": {"docker-manifest-digest": digest}}}
    return json.dumps(document).encode()


def signed(key: Key, content: bytes) -> Signature:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        raw = key.sign(content, ec.ECDSA(hashes.SHA256()))
    else:
        raw = key.sign(content)
    return Signature(content, base64.b64encode(raw).decode())


def reason(*signatures: Signature, keys: Any = TRUSTED) -> str:
    with pytest.raises(Refusal) as refused:
        find_signer(DIGEST, signatures, keys)
    assert refused.value.code == Code.SIGNATURE_INVALID
    return refused.value.detail


def test_the_first_trusted_signer_is_found() -> None:
    assert find_signer(DIGEST, [signed(P256, payload())], TRUSTED) == "key_1"
    assert find_signer(DIGEST, [signed(ED25519, payload())], TRUSTED) == "key_2"
    stranger = signed(ed25519.Ed25519PrivateKey.generate(), payload())
    other = signed(P256, payload("sha256:" + "b" * 64))
    assert find_signer(DIGEST, [stranger, other, signed(ED25519, payload())], TRUSTED) == "key_2"


def test_why_there_is_none() -> None:
    good = signed(P256, payload())
    assert "trusts no key yet" in reason(good, keys=[])
    assert "holds no signature" in reason()
    assert "does not trust, or was changed" in reason(signed(ed25519.Ed25519PrivateKey.generate(), payload()))
    assert "does not trust, or was changed" in reason(Signature(payload() + b" ", good.signature))
    assert "does not trust, or was changed" in reason(Signature(payload(), "not base64!"))
    assert "does not trust, or was changed" in reason(Signature(payload(), good.signature + "\n"))
    other = "sha256:" + "b" * 64
    assert f"the signature is for {other}" in reason(signed(P256, payload(other)))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (payload(kind="something"), "something else than a manifest"),
        (b"no json", "nothing that can be read"),
        (b"{}", "nothing that can be read"),
        (b'{"critical": 7}', "nothing that can be read"),
        (b"[" * 100_000, "nothing that can be read"),
    ],
)
def test_a_document_that_names_no_manifest(content: bytes, named: str) -> None:
    assert f"the signature is for {named}" in reason(signed(P256, content))


def pem(key: Any) -> str:
    return str(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def test_which_keys_can_be_trusted() -> None:
    assert read_key(pem(P256)).algorithm == KeyAlgorithm.ECDSA_P256
    read = read_key("\n\n" + pem(ED25519) + "\n")
    assert (read.algorithm, read.pem) == (KeyAlgorithm.ED25519, pem(ED25519)), "kept in one form"
    assert read.fingerprint == read_key(pem(ED25519)).fingerprint != read_key(pem(P256)).fingerprint
    for bad in (
        pem(ec.generate_private_key(ec.SECP384R1())),
        pem(rsa.generate_private_key(65537, 2048)),
        "",
        pem(P256)[:60],
    ):
        with pytest.raises(Refusal) as refused:
            read_key(bad)
        assert refused.value.code == Code.KEY_INVALID
