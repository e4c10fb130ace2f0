"""Run-time secrets: made by the platform for one app instance, destroyed with it. For its controller only, unless the
app's manifest names roles whose people may read one."""

import math
import string
from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field, SecretStr, model_validator

from gpuaas_contract.base import Key, OwnedResource, Page, Request, Resource
from gpuaas_contract.credentials import VersionState
from gpuaas_contract.secret_deliveries import Encoding

LEAST_BITS = 64
"""The least entropy of a password."""
DEFAULT_ALPHABET = string.ascii_letters + string.digits


ReaderRole = Literal["platform_admin", "tenant_admin", "project_admin", "project_member", "project_viewer"]
"""A role that a person can have on a project. A publisher has none there; a service account never reads a secret."""
MOST_READERS = 5


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
    readable_by: list[str] = []
    """Roles whose people may read the value, as the manifest of the instance's present version says."""


class SecretPage(Page):
    items: list[Secret]


class SecretEnsure(Request):
    """The secret of that name of the operation's instance, made where it is missing."""

    fencing_token: int
    name: Key
    spec: SecretSpec | None = None
    """Left out where the app's manifest declares a secret of that name."""


class SecretRead(Request):
    """From a person with one of the roles that the manifest names, who gives their password again."""

    name: Key
    version: int | None = Field(default=None, ge=1, le=1_000_000)
    """The newest valid one where none is named. An app may still use the one before it: it brings a new value out with
    its next operation."""
    password: SecretStr = Field(min_length=1, max_length=1024)
    """Of the person who asks. Wrong ones count like those at the log-in."""


class ReadSecret(Resource):
    """The value, for this request only: the answer to a repeated one comes without it."""

    ONE_TIME = frozenset({"value"})

    secret_id: str
    instance_id: str
    name: str
    version: int
    encoding: Encoding
    value: str | None = Field(default=None, repr=False)
