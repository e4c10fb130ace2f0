"""How a secret reaches the holder of a lease: a token that can be unwrapped once, through the platform."""

from enum import StrEnum

from pydantic import AwareDatetime, Field, SecretStr

from gpuaas_contract.base import Request, Resource

WRAP_SECONDS = 60
"""How long a wrapping token lives."""


class Encoding(StrEnum):
    TEXT = "text"
    BASE64 = "base64"


class SecretDeliveryRequest(Request):
    """From the service account that holds the lease of the operation under this token."""

    operation_id: str
    fencing_token: int
    version: int | None = Field(default=None, ge=1)
    """The newest valid one where none is named."""


class SecretDelivery(Resource):
    """Unwrapped by `POST /v1/secret-deliveries/{id}/unwrap`. A lease can unwrap each version once; to ask again
    before that makes the earlier token void."""

    ONE_TIME = frozenset({"wrapping_token"})

    id: str
    owner_id: str
    """The credential or the secret."""
    version: int
    operation_id: str
    expires_at: AwareDatetime
    wrapping_token: str | None = Field(default=None, repr=False)


class UnwrapRequest(Request):
    wrapping_token: SecretStr = Field(min_length=1, max_length=500)


class UnwrappedSecret(Resource):
    """The one answer that holds the secret. It is never given twice, nor kept."""

    ONE_TIME = frozenset({"value"})

    owner_id: str
    version: int
    encoding: Encoding
    value: str = Field(repr=False)
