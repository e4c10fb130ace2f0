"""People's own SSH public keys: a grant installs them on its machine, its end removes them."""

from pydantic import Field

from gpuaas_contract.base import Name, OwnedResource, Page, Request

MOST_KEYS = 20
"""Of one person."""


class SshKeyCreate(Request):
    name: Name
    public_key: str = Field(
        max_length=4_000,
        description="One line in OpenSSH's form: ed25519, ecdsa, one of both on a security key (sk-…), or rsa of 3072 "
        "bits or more. No options; the comment is not kept.",
    )


class SshKey(OwnedResource):
    name: str
    key_type: str
    bits: int
    public_key: str
    fingerprint: str


class SshKeyPage(Page):
    items: list[SshKey]
