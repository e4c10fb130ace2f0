"""Run-time secrets: made by the platform for one app instance, for its controller only, destroyed with it."""

import math
import string
from enum import StrEnum

from pydantic import AwareDatetime, Field, model_validator

from gpuaas_contract.base import Key, OwnedResource, Page, Request, Resource
from gpuaas_contract.credentials import VersionState

LEAST_BITS = 64
"""The least entropy of a password."""
DEFAULT_ALPHABET = string.ascii_letters + string.digits


class SecretKind(StrEnum):
    BYTES = "bytes"
    """Random bytes, delivered in base64."""
    PASSWORD = "password"  # noqa: S105 - a kind, not a secret


class SecretSpec(Request):
    kind: SecretKind
    size: int = Field(default=32, ge=8, le=1_024)
    """How many bytes, or how many characters of a password."""
    alphabet: str | None = Field(default=None, min_length=2, max_length=94, pattern=r"^[\x21-\x7e]+$")
    """The characters of a password: letters and digits where none are named."""

    @model_validator(mode="after")
    def _check_strength(self) -> "SecretSpec":
        if self.kind == SecretKind.BYTES:
            if self.alphabet is not None:
                raise ValueError("only a password has an alphabet")
            if self.size < 16:
                raise ValueError("a secret needs at least 16 bytes")
            return self
        letters = self.letters
        if len(set(letters)) != len(letters):
            raise ValueError("the characters of the alphabet must differ")
        if self.size * math.log2(len(letters)) < LEAST_BITS:
            raise ValueError(f"too weak: size and alphabet must give at least {LEAST_BITS} bits")
        return self

    @property
    def letters(self) -> str:
        return self.alphabet or DEFAULT_ALPHABET


class SecretVersion(Resource):
    version: int
    state: VersionState
    created_at: AwareDatetime
    ended_at: AwareDatetime | None = None


class Secret(OwnedResource):
    project_id: str
    instance_id: str
    name: str
    spec: SecretSpec
    versions: list[SecretVersion]
    """In their order. The newest is delivered unless the one before it is asked for; older ones have ended."""


class SecretPage(Page):
    items: list[Secret]


class SecretEnsure(Request):
    """The secret of that name of the operation's instance, made where it is missing."""

    fencing_token: int
    name: Key
    spec: SecretSpec | None = None
    """Left out where the app's manifest declares a secret of that name."""
