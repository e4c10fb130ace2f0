"""A machine that the platform knows only by where it is, who it is, and the credential that opens it."""

import base64
import binascii
import ipaddress
import re
import struct

from pydantic import Field, field_validator

from gpuaas_contract.base import Request

HOST_KEY_TYPES = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)
# Whole strings only: `$` would let a line break at the end pass.
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_ALL_DIGITS = re.compile(r"[0-9.]+")


def check_address(text: str) -> str:
    """An IPv4 or IPv6 address, or a host name; nothing that a shell or a known_hosts file would read otherwise."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        named = len(text) <= 253 and all(_LABEL.fullmatch(label) for label in labels)
        # What looks like an IPv4 address and is none would be read as one by somebody.
        if not named or _ALL_DIGITS.fullmatch(text):
            raise ValueError("must be an IPv4 or IPv6 address or a host name") from None
        return text
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise ValueError("must be an address without a zone")
    if address.is_unspecified or address.is_multicast:
        raise ValueError("must be the address of one machine")
    return str(address)


def check_host_key(line: str) -> str:
    """One OpenSSH public key, as `ssh-keyscan` prints it after the name; the comment is dropped."""
    words = line.split(maxsplit=2)
    if len(words) < 2 or words[0] not in HOST_KEY_TYPES:
        raise ValueError("must be one public host key in OpenSSH form, for example `ssh-ed25519 AAAA…`")
    kind, encoded = words[0], words[1]
    try:
        blob = base64.b64decode(encoded, validate=True)
        (length,) = struct.unpack_from(">I", blob)
    except (binascii.Error, struct.error):
        raise ValueError("the key's data is not what OpenSSH writes") from None
    if blob[4 : 4 + length] != kind.encode() or len(blob) <= 4 + length:
        raise ValueError(f"the key's data is not that of a {kind} key")
    return f"{kind} {encoded}"


class ExternalMachine(Request):
    """An external machine. Its host key is given beforehand and verified; there is no trust on first use."""

    address: str = Field(min_length=1, max_length=253)
    port: int = Field(default=22, ge=1, le=65_535)
    login: str = Field(default="root", pattern=r"^[a-z_][a-z0-9_-]{0,31}$")
    """The user to log in as; apps need root."""
    host_key: str = Field(max_length=4_000, pattern=r"^[^\x00-\x1f]*$")
    credential_id: str = Field(max_length=100, pattern=r"^crd_[A-Za-z0-9]+$")
    """The access credential that opens it."""

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        return check_address(value)

    @field_validator("host_key")
    @classmethod
    def _check_host_key(cls, value: str) -> str:
        return check_host_key(value)
