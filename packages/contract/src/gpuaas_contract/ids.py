"""Identifiers: a type prefix and 26 characters that sort by time of creation."""

import re
import secrets
import threading
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
GRANT = "grt"
SSH_KEY = "ssk"
STREAM = "stm"
CREDENTIAL = "crd"
SECRET = "sec"  # noqa: S105 - a prefix, not a secret
SECRET_DELIVERY = "sdl"  # noqa: S105 - a prefix, not a secret
APP_VERSION = "apv"
ENTITLEMENT = "ent"
ARTIFACT = "art"
TRUSTED_KEY = "tky"
DELIVERY = "dlv"
INSTANCE = "ins"
MEMBER = "mem"
OPERATION = "op"
PREFLIGHT = "pfl"
APP_USAGE = "apu"
BULK = "blk"
CORRELATION = "cor"
AUDIT_ENTRY = "aud"
USAGE = "usg"
VOLUME = "vol"


_lock = threading.Lock()
_last = 0


def new_id(prefix: str) -> str:
    """48 bits of milliseconds, then 80 random bits. Ids made later sort later, in one process also within the same
    millisecond and when the clock is set back: what one request makes is listed in the order in which it was made."""
    global _last
    with _lock:
        number = (int(time.time() * 1000) << 80) | secrets.randbits(80)
        if number <= _last:
            number = _last + 1 + secrets.randbits(64)
        _last = number
    characters = [_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5)]
    return f"{prefix}_{''.join(characters)}"


def is_id(value: str, prefix: str) -> bool:
    return value.startswith(f"{prefix}_") and _PATTERN.fullmatch(value) is not None
