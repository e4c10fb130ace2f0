"""Artifacts: files in the registry, by digest, that are brought to machines; and the keys that vouch for them."""

from enum import StrEnum

from pydantic import Field, model_validator

from gpuaas_contract.base import Digest, Name, OwnedResource, Page, Request, Resource


class OfOneOwner(Request):
    """Names the app or the project that something belongs to."""

    app_slug: Name | None = None
    project_id: str | None = Field(default=None, max_length=100)

    @model_validator(mode="after")
    def _one_owner(self) -> "OfOneOwner":
        if (self.app_slug is None) == (self.project_id is None):
            raise ValueError("name an app or a project, and only one of them")
        return self


class ArtifactStatus(StrEnum):
    UPLOADED = "uploaded"
    """In the registry; nobody has vouched for it yet."""
    VERIFIED = "verified"
    """Signed with a key that its owner trusts."""
    PROMOTED = "promoted"
    """May be delivered to machines."""
    RETIRED = "retired"
    """Not delivered any more."""


class ArtifactRegister(OfOneOwner):
    """Register a pushed artifact: a manifest with one layer, which is the file."""

    name: Name
    digest: Digest
    """Of the manifest."""


class Artifact(OwnedResource):
    app_slug: str | None = None
    project_id: str | None = None
    name: str
    repository: str
    """Where it is in the registry."""
    digest: str
    """Of the manifest: what deliveries and app manifests name."""
    status: ArtifactStatus
    artifact_type: str
    media_type: str
    content_digest: str
    """Of the file itself."""
    size: int
    file_name: str | None = None
    trusted_key_id: str | None = None
    """The key that its signature was verified with."""


class ArtifactPage(Page):
    items: list[Artifact]


class KeyAlgorithm(StrEnum):
    ECDSA_P256 = "ecdsa_p256"
    ED25519 = "ed25519"


class TrustedKeyCreate(OfOneOwner):
    name: Name
    public_key_pem: str = Field(max_length=2_000)
    """ECDSA P-256 (what cosign makes) or ed25519."""


class TrustedKey(OwnedResource):
    """A key whose signatures an app or a project trusts."""

    app_slug: str | None = None
    project_id: str | None = None
    name: str
    algorithm: KeyAlgorithm
    fingerprint: str
    public_key_pem: str


class TrustedKeyPage(Page):
    items: list[TrustedKey]


class Registry(Resource):
    """Where artifacts are pushed to. Its tokens come from `GET /v1/registry/token`."""

    url: str


class RegistryToken(Resource):
    """As Docker's token protocol has it."""

    token: str
    access_token: str
    expires_in: int
    issued_at: str


class RegistryTokenState(Resource):
    active: bool
    """Whether all that a token for the registry says may be done is still the right of its holder."""


class RegistryUpload(Resource):
    """An upload that was interrupted, as the registry has it."""

    location: str | None = None
    """The address where the upload continues; none if it is unknown and the upload has to start over."""
    offset: int = 0
    """How many bytes it has."""


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    TO_COPY = "to_copy"
    """No agent is on the machine: whoever holds the lease fetches the file from the registry and copies it."""


class DeliveryRequest(Request):
    """Bring a promoted artifact of the operation's app or project to one machine of the operation."""

    fencing_token: int
    allocation_id: str
    digest: Digest


class DeliverySource(Resource):
    """The file in the registry, for which `GET /v1/registry/token` has a token."""

    repository: str
    digest: str
    """Of the file itself."""


class Delivery(Resource):
    id: str
    allocation_id: str
    digest: str
    status: DeliveryStatus
    path: str | None = None
    """Where the file is on the machine, once delivered; read-only."""
    reason: str = ""
    source: DeliverySource | None = None
    """In the answer to a request whose file is to be copied."""
