"""Checking signed teardown receipts without the platform, with public keys that were saved before."""

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gpuaas_contract.receipts import ALGORITHM, RECEIPT_FORMAT, ReceiptSignature, Verdict, file_bytes, key_id_of
from gpuaas_contract.receipts import canonical_bytes as canonical_bytes
from gpuaas_sdk.errors import GpuaasError

LARGEST_FILE = 16 * 1024 * 1024


class ReceiptRefused(GpuaasError):  # noqa: N818 - what was found, not what went wrong here
    """The receipt proves nothing; `reason` names why."""

    reason = "changed"


class NotAReceipt(ReceiptRefused):
    """The file is no signed receipt, or not in the one form that such a file has."""

    reason = "not_a_receipt"


class UntrustedKey(ReceiptRefused):
    """Signed by a key that you do not trust."""

    reason = "untrusted_key"


class ReceiptChanged(ReceiptRefused):
    """Something was changed after it was signed."""

    reason = "changed"


class ProbesCut(ReceiptRefused):
    """There are fewer probes than were signed."""

    reason = "probes_cut"


class OtherInstance(ReceiptRefused):
    """It is the receipt of another instance than the one that was asked for."""

    reason = "other_instance"


@dataclass(frozen=True, slots=True)
class ReceiptReport:
    receipt: dict[str, Any]
    key_id: str

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.receipt["verdict"])


def verify_receipt(content: bytes, keys: Iterable[bytes], *, instance: str | None = None) -> ReceiptReport:
    """Verify a receipt file with raw Ed25519 public keys that the caller trusts; the file itself names none.

    `instance` is the id or the name that the receipt has to be about. Raises ReceiptRefused."""
    receipt, signature = _read(content)
    count = receipt.get("probe_count")
    probes = receipt.get("probes")
    if not isinstance(probes, list) or count != len(probes):
        have = len(probes) if isinstance(probes, list) else 0
        raise ProbesCut(f"the list of probes was cut: it has {have}, and {count} were signed")
    trusted = {key_id_of(key): key for key in keys}
    if signature.key_id not in trusted:
        raise UntrustedKey(f"signed by a key that you do not trust: {signature.key_id}")
    try:
        value = base64.b64decode(signature.value, validate=True)
        Ed25519PublicKey.from_public_bytes(trusted[signature.key_id]).verify(value, canonical_bytes(receipt))
    except (InvalidSignature, ValueError):
        raise ReceiptChanged("the receipt was changed after it was signed: its signature does not match") from None
    if base64.b64encode(value).decode() != signature.value or signature.algorithm != ALGORITHM:
        raise ReceiptChanged("the receipt was changed after it was signed: its signature has another form")
    if receipt.get("signed_by", {}).get("key_id") != signature.key_id:
        raise ReceiptChanged("the receipt names another key than the one that signed it")
    about = receipt.get("instance", {})
    if instance is not None and instance not in (about.get("id"), about.get("name")):
        said = f"{about.get('name')} ({about.get('id')})"
        raise OtherInstance(f"this is the receipt of another instance: {said}, not of {instance}")
    if receipt.get("format") != RECEIPT_FORMAT or receipt.get("verdict") not in set(Verdict):
        raise NotAReceipt("this version cannot read the receipt; use a newer one")
    return ReceiptReport(receipt, signature.key_id)


def _read(content: bytes) -> tuple[dict[str, Any], ReceiptSignature]:
    if len(content) > LARGEST_FILE:
        raise NotAReceipt(f"the file is larger than {LARGEST_FILE} bytes: no receipt is")
    try:
        document = json.loads(content)
        receipt, signature = document["receipt"], ReceiptSignature.model_validate(document["signature"])
        whole = isinstance(receipt, dict) and file_bytes(receipt, signature) == content
    except (ValueError, TypeError, KeyError, RecursionError):
        raise NotAReceipt("this is no signed receipt: export it again") from None
    if not whole:
        raise ReceiptChanged("the file is not as it was exported: export the receipt again")
    return receipt, signature


def parse_keys(text: str) -> list[bytes]:
    """Read public keys: PEM blocks, or raw keys in base64, one a line. Raises ValueError."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found: list[bytes] = []
    end = "-----END PUBLIC KEY-----"
    if end in text:
        for block in text.split(end)[:-1]:
            key = load_pem_public_key((block[block.index("-----BEGIN") :] + end + "\n").encode())
            if not isinstance(key, Ed25519PublicKey):
                raise ValueError("a receipt key is an Ed25519 key")
            found.append(key.public_bytes_raw())
        return found
    for line in text.split():
        try:
            key_bytes = base64.b64decode(line, validate=True)
        except binascii.Error:
            raise ValueError("it holds no public key, neither in PEM form nor in base64") from None
        if len(key_bytes) != 32:
            raise ValueError("an Ed25519 public key has 32 bytes")
        found.append(key_bytes)
    if not found:
        raise ValueError("it holds no public key")
    return found


def pem_of(public_key: bytes) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = Ed25519PublicKey.from_public_bytes(public_key)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
