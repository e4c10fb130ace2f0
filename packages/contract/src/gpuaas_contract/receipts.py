"""Signed teardown receipts: what was looked at when an app instance ended, and what was not, as a certificate.

The platform signs the canonical bytes of the whole receipt (`canonical_bytes`) with a key that never leaves OpenBao.
A receipt file is the canonical bytes of `{"receipt": …, "signature": …}`, so that no byte of it can be changed.
"""

import base64
import hashlib
import json
from enum import StrEnum

from pydantic import AwareDatetime

from gpuaas_contract.base import JsonObject, Resource

RECEIPT_FORMAT = "gpuaas-teardown-receipt/1"
ALGORITHM = "ed25519"


class Verdict(StrEnum):
    NOTHING_LEFT = "nothing_left"
    """Every probe of every member was made and found nothing."""
    UNVERIFIED = "unverified"
    """Something was not looked at, or was written off; `unverified` says what."""
    SOMETHING_LEFT = "something_left"
    """A probe found something; `left` says which."""


class ReceiptState(StrEnum):
    PENDING = "signature pending"
    SIGNED = "signed"


class ReceiptSignature(Resource):
    algorithm: str
    key_id: str
    value: str
    """Over the canonical bytes of the receipt, base64."""


class SignedReceipt(Resource):
    instance_id: str
    state: ReceiptState
    receipt: JsonObject
    """The whole receipt. What is signed are its canonical bytes; until then `audit` and `signed_by` are absent."""
    signature: ReceiptSignature | None = None


class ReceiptKey(Resource):
    key_id: str
    """SHA-256 of the raw public key, in hex."""
    version: str
    algorithm: str
    public_key: str
    """Raw Ed25519 public key, base64."""
    created_at: AwareDatetime


class ReceiptKeys(Resource):
    items: list[ReceiptKey]
    """All that ever signed, oldest first; the last one signs now."""


def canonical_bytes(document: JsonObject) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII: the same document always has the same bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def key_id_of(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()


def file_bytes(receipt: JsonObject, signature: ReceiptSignature) -> bytes:
    """The one form of a receipt file."""
    return canonical_bytes({"receipt": receipt, "signature": signature.model_dump(mode="json")}) + b"\n"


def encode_key(public_key: bytes) -> str:
    return base64.b64encode(public_key).decode()
