"""Access credentials, and versions of secret values, as the database has them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuaas_contract.credentials import CredentialStatus, KeyOrigin
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class CredentialRecord(Record):
    """A credential by itself, as every change of it returns it."""

    id: str
    project_id: str
    name: str
    status: CredentialStatus
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class CredentialView(CredentialRecord):
    """A credential with its tenant."""

    tenant_id: str


class StoredState(StrEnum):
    """The states of `VersionState`, and the one before them, which is shown to nobody."""

    WRITING = "writing"
    """About to be written to OpenBao, or written and not settled yet."""
    VALID = "valid"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SecretVersionRecord(Record):
    """One value of a credential or of a secret; the value itself lies in OpenBao."""

    owner_id: str
    """The id of the credential or the secret."""
    version: int
    project_id: str
    state: StoredState
    origin: KeyOrigin | None
    """This and the fields up to `fingerprint` are those of a credential's key; a secret has none of them."""
    key_type: str | None
    bits: int | None
    public_key: str | None
    fingerprint: str | None
    created_at: datetime
    valid_at: datetime | None
    """None where it was given up before it was valid."""
    ended_at: datetime | None
