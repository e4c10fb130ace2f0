"""Evidence that controllers hand over to be shown: bounded, and without secrets."""

import json
import re
from typing import Any

from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.errors import Refusal

_LOOKS = (
    ("a private key", re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")),
    ("a token of this platform", re.compile(r"gpuaas-(?:join|secret)-[A-Za-z0-9_-]{20}")),
    ("a signed token", re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}")),
    ("a token of a secrets server", re.compile(r"(?<![A-Za-z0-9])(?:hvs|hvb|hvr|s|b|r)\.[A-Za-z0-9]{24,}")),
    ("a bearer token", re.compile(r"[Bb]earer [A-Za-z0-9._~+/-]{30,}")),
    ("an access key", re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])")),
    ("an access key", re.compile(r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{36}")),
)

DETAIL_LIMIT = 64 * 1024


def find_secret(value: Any, pointer: str = "") -> tuple[str, str] | None:
    """Where in a JSON value something looks like a secret, and like which. Never the value itself."""
    if isinstance(value, str):
        return next(((pointer, what) for what, look in _LOOKS if look.search(value)), None)
    if isinstance(value, dict):
        for key, item in value.items():
            if found := find_secret(key, f"{pointer}/(key)") or find_secret(item, f"{pointer}/{str(key)[:60]}"):
                return found
    if isinstance(value, list):
        for number, item in enumerate(value):
            if found := find_secret(item, f"{pointer}/{number}"):
                return found
    return None


def check_shown(value: Any, limit: int, what: str, pointer: str) -> None:
    if len(json.dumps(value)) > limit:
        raise Refusal(Code.TOO_LARGE, f"{what} is limited to {limit} bytes")
    if (found := find_secret(value, pointer)) is not None:
        where, looks_like = found
        detail = f"{what} holds what looks like {looks_like} at {where}; nothing of it was kept: leave it out"
        raise Refusal(Code.SECRET_SUSPECTED, detail, errors=[FieldError(pointer=where, detail=detail)])
