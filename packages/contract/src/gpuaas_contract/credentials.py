"""Access credentials: SSH private keys of a project, for machines outside of its SSH authority.

The key itself is in no answer but that of an unwrap: see `secret_deliveries`."""

from enum import StrEnum

from pydantic import AwareDatetime, Field, SecretStr

from gpuaas_contract.base import Name, OwnedResource, Page, Request, Resource

VALID_VERSIONS = 2
"""Two, so that the next key can be brought out before the last one ends."""


class CredentialStatus(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"
    """Never delivered again; its keys are destroyed."""


class KeyOrigin(StrEnum):
    GENERATED = "generated"
    UPLOADED = "uploaded"


class VersionState(StrEnum):
    VALID = "valid"
    ENDING = "ending"
    """Never delivered again; about to be destroyed in the secrets server."""
    ENDED = "ended"


class CredentialVersion(Resource):
    version: int
    state: VersionState
    origin: KeyOrigin
    key_type: str
    """As OpenSSH calls it, for example `ssh-ed25519`."""
    bits: int
    public_key: str
    fingerprint: str
    created_at: AwareDatetime
    ended_at: AwareDatetime | None = None


class Credential(OwnedResource):
    project_id: str
    name: str
    status: CredentialStatus
    versions: list[CredentialVersion]
    """In their order; the newest valid one is delivered unless another is asked for."""


class CredentialPage(Page):
    items: list[Credential]


class CredentialRotate(Request):
    private_key: SecretStr | None = Field(
        default=None,
        max_length=16_384,
        description="An unencrypted OpenSSH private key: ed25519, ecdsa, or rsa of 3072 bits or more. "
        "Without it the platform makes an ed25519 key that nobody ever sees.",
    )


class CredentialCreate(CredentialRotate):
    project_id: str
    name: Name
