"""The public keys of platforms that receipts are checked with, saved beside the contexts, by the platform's address."""

import base64
import binascii
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuaas_sdk.profile import config as configuration
from gpuaas_sdk.profile.errors import ProfileError, Wrong

if TYPE_CHECKING:
    from gpuaas_contract.receipts import ReceiptKey


def path() -> Path:
    return configuration.path().with_name("receipt-keys.json")


def load(api_url: str) -> list[bytes]:
    return [base64.b64decode(key) for key in _load().get(api_url.rstrip("/"), [])]


def save(api_url: str, keys: "Iterable[ReceiptKey]") -> int:
    """Add keys; one that was saved once stays. Return how many are new."""
    saved = _load()
    known = saved.setdefault(api_url.rstrip("/"), [])
    new = [key.public_key for key in keys if key.public_key not in known]
    if new:
        known += new
        configuration.write_private(path(), json.dumps(saved, indent=2) + "\n")
    return len(new)


def _load() -> dict[str, list[str]]:
    file = path()
    try:
        found = json.loads(file.read_text())
        for keys in found.values():
            for key in keys:
                base64.b64decode(key, validate=True)
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, binascii.Error) as error:
        hint = f"remove it, and save them again: gpuaas receipt keys --save ({file})"
        raise ProfileError(f"cannot read {file}: {error}", Wrong.USAGE, hint=hint) from None
    return dict(found)
