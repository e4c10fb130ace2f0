"""Signatures in cosign's format: a small document that names the manifest, signed with a key that is trusted."""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from gpuaas_contract import oci
from gpuaas_contract.artifacts import KeyAlgorithm
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal

PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class ReadKey:
    key: PublicKey
    algorithm: KeyAlgorithm
    pem: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Signature:
    payload: bytes
    signature: str
    """In base64."""


def read_key(pem: str) -> ReadKey:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Refusal(Code.KEY_INVALID, "this is not a public key in PEM form") from error
    if isinstance(key, ed25519.Ed25519PublicKey):
        algorithm = KeyAlgorithm.ED25519
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        algorithm = KeyAlgorithm.ECDSA_P256
    else:
        raise Refusal(Code.KEY_INVALID, "a trusted key is ECDSA P-256, as cosign makes it, or ed25519")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    normal = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return ReadKey(key, algorithm, normal, f"SHA256:{hashlib.sha256(der).hexdigest()}")


def find_signer(digest: str, signatures: Iterable[Signature], keys: Iterable[tuple[str, PublicKey]]) -> str:
    """The id of the first trusted key that signed this very manifest; a refusal that says why there is none."""
    trusted = list(keys)
    if not trusted:
        raise _refusal("its owner trusts no key yet: add one, then verify again")
    reasons = []
    for signature in signatures:
        key_id = _signed_by(signature, trusted)
        if key_id is None:
            reasons.append("it was signed with a key that its owner does not trust, or was changed since")
        elif (named := _named_digest(signature.payload)) != digest:
            reasons.append(f"the signature is for {named}")
        else:
            return key_id
    raise _refusal("; ".join(dict.fromkeys(reasons)) or "the signature document holds no signature")


def _refusal(reason: str) -> Refusal:
    return Refusal(Code.SIGNATURE_INVALID, f"the artifact is not verified: {reason}")


def _signed_by(signature: Signature, keys: list[tuple[str, PublicKey]]) -> str | None:
    try:
        raw = base64.b64decode(signature.signature, validate=True)
    except (binascii.Error, ValueError):
        return None
    for key_id, key in keys:
        try:
            if isinstance(key, ed25519.Ed25519PublicKey):
                key.verify(raw, signature.payload)
            else:
                key.verify(raw, signature.payload, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        return key_id
    return None


def _named_digest(payload: bytes) -> str:
    """Only of a document whose signature is right: what it says is then the signer's word."""
    try:
        critical = json.loads(payload)["critical"]
        if critical["type"] != oci.SIGNATURE_TYPE:
            return "something else than a manifest"
        return str(critical["image"]["docker-manifest-digest"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "nothing that can be read"
