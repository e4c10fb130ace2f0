"""SSH keys: which ones are taken, and what may be known of them."""

import base64
import hashlib
from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from gpuaas_contract.credentials import KeyOrigin
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.errors import Refusal

LEAST_RSA_BITS = 3072
_HEADER = "-----BEGIN OPENSSH PRIVATE KEY-----"
_PUBLIC_KINDS = {
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
}
PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey | RSAPrivateKey


@dataclass(frozen=True, slots=True)
class SshKey:
    origin: KeyOrigin
    key_type: str
    bits: int
    public_key: str
    fingerprint: str
    private_key: str = field(repr=False)

    @property
    def facts(self) -> dict[str, object]:
        """All but the key itself."""
        return {
            "origin": self.origin,
            "key_type": self.key_type,
            "bits": self.bits,
            "public_key": self.public_key,
            "fingerprint": self.fingerprint,
        }


def generate_key() -> SshKey:
    return _describe(Ed25519PrivateKey.generate(), KeyOrigin.GENERATED)


def read_key(text: str) -> SshKey:
    """Refusals say what is wrong with a key, and nothing of what is in it."""
    if not text.strip().startswith(_HEADER):
        raise _refusal("this is not a private key in OpenSSH form; `ssh-keygen -p -f FILE` writes that form")
    try:
        key = load_ssh_private_key(text.strip().encode() + b"\n", password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        if "password" in str(error).lower():
            raise _refusal("the key is encrypted; take its passphrase off with `ssh-keygen -p -f FILE`") from None
        if "unsupported" in str(error).lower():
            raise _refusal("keys of this kind are not taken; use ed25519, ecdsa or rsa") from None
        raise _refusal("this is not an OpenSSH private key, or a damaged one") from None
    if isinstance(key, RSAPrivateKey) and key.key_size < LEAST_RSA_BITS:
        raise _refusal(f"an RSA key has {LEAST_RSA_BITS} bits or more, this one has {key.key_size}")
    if not isinstance(key, PrivateKey):
        raise _refusal("keys of this kind are not taken; use ed25519, ecdsa or rsa")
    return _describe(key, KeyOrigin.UPLOADED)


def _refusal(detail: str) -> Refusal:
    return Refusal(Code.KEY_INVALID, detail, errors=[FieldError(pointer="/private_key", detail=detail)])


@dataclass(frozen=True, slots=True)
class PublicKey:
    key_type: str
    bits: int
    public_key: str
    fingerprint: str


def read_public_key(text: str) -> PublicKey:
    """One line and nothing around it: what is more than a key, options for example, would go to machines with it."""
    line = text.strip()
    words = line.split(" ")
    if "\n" in line or "\r" in line or not line.isprintable() or len(words) < 2:
        raise _public_refusal("this is not one line with a public key in OpenSSH's form, as in ~/.ssh/id_ed25519.pub")
    kind, blob = words[0], words[1]
    if kind not in _PUBLIC_KINDS:
        raise _public_refusal(f"keys of the kind {kind[:40]!r} are not taken; use ed25519, ecdsa or rsa")
    try:
        content = base64.b64decode(blob, validate=True)
        # Keys on a security key are not known to the library: their first field names them, as in all others.
        key = None if kind.startswith("sk-") else load_ssh_public_key(f"{kind} {blob}".encode())
    except (ValueError, UnsupportedAlgorithm):
        raise _public_refusal("this public key is damaged") from None
    name = kind.encode()
    if content[:4] != len(name).to_bytes(4, "big") or content[4 : 4 + len(name)] != name:
        raise _public_refusal("this public key is damaged: it is of another kind than it says")
    if isinstance(key, RSAPublicKey) and key.key_size < LEAST_RSA_BITS:
        raise _public_refusal(f"an RSA key has {LEAST_RSA_BITS} bits or more, this one has {key.key_size}")
    bits = key.key_size if isinstance(key, RSAPublicKey | EllipticCurvePublicKey) else 256
    return PublicKey(key_type=kind, bits=bits, public_key=f"{kind} {blob}", fingerprint=_fingerprint(content))


def _public_refusal(detail: str) -> Refusal:
    return Refusal(Code.KEY_INVALID, detail, errors=[FieldError(pointer="/public_key", detail=detail)])


def _fingerprint(blob: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _describe(key: PrivateKey, origin: KeyOrigin) -> SshKey:
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    key_type, blob = public.split()
    return SshKey(
        origin=origin,
        key_type=key_type,
        bits=256 if isinstance(key, Ed25519PrivateKey) else key.key_size,
        public_key=public,
        fingerprint=_fingerprint(base64.b64decode(blob)),
        # Written anew: without the comment, which may name a person or a machine.
        private_key=key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode(),
    )
