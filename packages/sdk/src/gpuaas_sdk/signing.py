"""Signatures in cosign's format, made with a private key in PEM form (ECDSA P-256 or ed25519)."""

import base64
import json
from typing import TYPE_CHECKING

from gpuaas_contract import oci

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


_COSIGNS_OWN = ("ENCRYPTED COSIGN PRIVATE KEY", "ENCRYPTED SIGSTORE PRIVATE KEY")


def read_private_key(pem: str, password: str | None = None) -> "EllipticCurvePrivateKey | Ed25519PrivateKey":
    """ValueError for what is no such key, or needs another password."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if any(words in pem for words in _COSIGNS_OWN):
        raise ValueError("it is encrypted as cosign alone does it; take the key in PKCS#8 form, as openssl makes it")
    try:
        key = load_pem_private_key(pem.encode(), None if password is None else password.encode())
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"cannot read the signing key: {error}") from None
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ValueError("a signing key is ECDSA P-256 or ed25519")


def to_pem(key: "EllipticCurvePrivateKey | Ed25519PrivateKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public_pem(private_key_pem: str) -> str:
    """The other half, which an app or a project may trust."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = read_private_key(private_key_pem).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def payload_of(repository: str, digest: str) -> bytes:
    """Make the document that is signed: it names the manifest."""
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": oci.SIGNATURE_TYPE,
    }
    return json.dumps({"critical": critical, "optional": None}, separators=(",", ":"), sort_keys=True).encode()


def sign(payload: bytes, private_key_pem: str) -> str:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = read_private_key(private_key_pem)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        signature = key.sign(payload)
    else:
        signature = key.sign(payload, ec.ECDSA(hashes.SHA256()))
    return base64.b64encode(signature).decode()
