"""Rights in the token of a registry: which actions on which repository, in the words of Docker's token protocol."""

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

PULL, PUSH, DELETE = "pull", "push", "delete"
MOST_SCOPES = 20
_SCOPE = re.compile(r"repository:(?P<name>[a-z0-9][a-z0-9/_.-]{0,254}):(?P<actions>[a-z*,]{1,100})")


@dataclass(frozen=True, slots=True)
class Access:
    repository: str
    actions: tuple[str, ...]

    def as_claim(self) -> dict[str, object]:
        return {"type": "repository", "name": self.repository, "actions": list(self.actions)}


def read_scopes(scopes: Iterable[str]) -> list[Access]:
    """Read the rights that are asked for. Anything but a repository, such as the catalogue, is passed over."""
    asked: dict[str, dict[str, None]] = {}
    for word in " ".join(scopes).split()[:MOST_SCOPES]:
        if (found := _SCOPE.fullmatch(word)) is not None:
            actions = asked.setdefault(found["name"], {})
            actions.update(dict.fromkeys(a for a in found["actions"].split(",") if a in {PULL, PUSH}))
    return [Access(name, tuple(actions)) for name, actions in asked.items()]


def key_id(public_key_der: bytes) -> str:
    """How Docker's registry names a key that it found in its certificate bundle."""
    text = base64.b32encode(hashlib.sha256(public_key_der).digest()[:30]).decode().rstrip("=")
    return ":".join(text[at : at + 4] for at in range(0, len(text), 4))
