"""Identifiers: a type prefix and 26 characters that sort by time of creation."""

import re
import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PATTERN = re.compile(r"[a-z]{2,4}_[0-9a-hjkmnp-tv-z]{26}")

TENANT = "ten"
PROJECT = "prj"
USER = "usr"
SERVICE_ACCOUNT = "sva"
SERVICE_ACCOUNT_KEY = "sak"
MEMBERSHIP = "mbs"
SESSION = "ses"
DEVICE_AUTHORIZATION = "dva"
NODE = "nod"
JOIN_TOKEN = "jtk"  # noqa: S105 - a prefix, not a secret
TASK = "tsk"
ALLOCATION = "alc"
ACCESS_GRANT = "acg"
STREAM = "stm"
CREDENTIAL = "crd"
SECRET = "sec"  # noqa: S105 - a prefix, not a secret
SECRET_DELIVERY = "sdl"  # noqa: S105 - a prefix, not a secret
APP_VERSION = "apv"
ARTIFACT = "art"
DELIVERY = "dlv"
INSTANCE = "ins"
MEMBER = "mem"
OPERATION = "op"
CORRELATION = "cor"
AUDIT_ENTRY = "aud"
USAGE = "usg"
VOLUME = "vol"


def new_id(prefix: str) -> str:
    """48 bits of milliseconds, then 80 random bits, so that ids made later sort later."""
    number = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    characters = [_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5)]
    return f"{prefix}_{''.join(characters)}"


def is_id(value: str, prefix: str) -> bool:
    return value.startswith(f"{prefix}_") and _PATTERN.fullmatch(value) is not None
