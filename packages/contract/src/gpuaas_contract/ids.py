"""Identifiers: a type prefix and 26 characters that sort by time of creation."""

import re
import secrets
import threading
import time

from gpuaas_contract.nouns import Noun

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PATTERN = re.compile(r"[a-z]{2,4}_[0-9a-hjkmnp-tv-z]{26}")

# The prefixes of nouns are declared in their registry.
TENANT = Noun.TENANT.prefix
PROJECT = Noun.PROJECT.prefix
USER = Noun.USER.prefix
SERVICE_ACCOUNT = Noun.SERVICE_ACCOUNT.prefix
MEMBERSHIP = Noun.MEMBERSHIP.prefix
NODE = Noun.NODE.prefix
JOIN_TOKEN = Noun.JOIN_TOKEN.prefix
ALLOCATION = Noun.ALLOCATION.prefix
GRANT = Noun.GRANT.prefix
SSH_KEY = Noun.SSH_KEY.prefix
CREDENTIAL = Noun.CREDENTIAL.prefix
SECRET = Noun.SECRET.prefix
APP_VERSION = Noun.APP_VERSION.prefix
ENTITLEMENT = Noun.ENTITLEMENT.prefix
ARTIFACT = Noun.ARTIFACT.prefix
TRUSTED_KEY = Noun.TRUSTED_KEY.prefix
DELIVERY = Noun.DELIVERY.prefix
INSTANCE = Noun.INSTANCE.prefix
MEMBER = Noun.MEMBER.prefix
OPERATION = Noun.OPERATION.prefix
PREFLIGHT = Noun.PREFLIGHT.prefix
APP_USAGE = Noun.APP_USAGE.prefix
BULK = Noun.BULK.prefix
VOLUME = Noun.VOLUME.prefix

# Not nouns: they have ids, and no changes in the feed.
SERVICE_ACCOUNT_KEY = "sak"
SESSION = "ses"
DEVICE_AUTHORIZATION = "dva"
TASK = "tsk"
ACCESS_GRANT = "acg"
STREAM = "stm"
SECRET_DELIVERY = "sdl"  # noqa: S105 - a prefix, not a secret
CORRELATION = "cor"
AUDIT_ENTRY = "aud"
USAGE = "usg"


_lock = threading.Lock()
_last = 0


def prefix_of(kind: Noun | str) -> str:
    """The prefix that a noun declares; anything that is not a noun is given as its prefix."""
    return kind.prefix if isinstance(kind, Noun) else kind


def new_id(kind: Noun | str) -> str:
    """48 bits of milliseconds, then 80 random bits. Ids made later sort later, in one process also within the same
    millisecond and when the clock is set back: what one request makes is listed in the order in which it was made."""
    global _last
    with _lock:
        number = (int(time.time() * 1000) << 80) | secrets.randbits(80)
        if number <= _last:
            number = _last + 1 + secrets.randbits(64)
        _last = number
    characters = [_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5)]
    return f"{prefix_of(kind)}_{''.join(characters)}"


def is_id(value: str, kind: Noun | str) -> bool:
    return value.startswith(f"{prefix_of(kind)}_") and _PATTERN.fullmatch(value) is not None
