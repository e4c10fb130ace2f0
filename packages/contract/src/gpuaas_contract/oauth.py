"""OAuth 2 as far as the platform speaks it: client credentials, the device flow, refresh, revocation."""

from pydantic import AwareDatetime, Field

from gpuaas_contract.base import Request, Resource

CLIENT_CREDENTIALS = "client_credentials"
REFRESH_TOKEN = "refresh_token"  # noqa: S105 - the name of a grant
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
USER_CODE_ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels, so that no code is a word; no digits, so that none looks like a letter."""


class DeviceAuthorization(Resource):
    """The start of a device login: the program shows `user_code` and polls with `device_code`."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class DeviceDecision(Request):
    user_code: str = Field(max_length=20)
    """As the person typed it: small letters and a missing dash are fine."""


class DeviceRequest(Resource):
    """The program that waits for approval, shown to the person who decides."""

    user_code: str
    client_id: str
    address: str = ""
    """From which the program asked; empty where it is not known."""
    status: str
    created_at: AwareDatetime
    expires_at: AwareDatetime


class AuthorizationServerMetadata(Resource):
    """RFC 8414."""

    issuer: str
    token_endpoint: str
    device_authorization_endpoint: str
    revocation_endpoint: str
    jwks_uri: str
    response_types_supported: list[str]
    grant_types_supported: list[str]
    token_endpoint_auth_methods_supported: list[str]
    token_endpoint_auth_signing_alg_values_supported: list[str]
    revocation_endpoint_auth_methods_supported: list[str]


class JsonWebKey(Resource):
    kty: str = "OKP"
    crv: str = "Ed25519"
    use: str = "sig"
    alg: str = "Ed25519"
    kid: str
    x: str


class JsonWebKeySet(Resource):
    keys: list[JsonWebKey]
