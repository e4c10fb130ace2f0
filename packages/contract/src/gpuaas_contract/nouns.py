"""The registry of nouns: what the platform keeps, how it is identified, and where its collection is."""

from enum import StrEnum
from typing import Self

from gpuaas_contract.wire import API_PREFIX

_OF_APP = True


class Noun(StrEnum):
    """The nouns of the change feed. Readers ignore nouns that they do not know yet."""

    prefix: str
    """The type prefix of its ids; empty for a noun that is named by the id of its owner."""
    collection: str
    """The path of its collection below `/v1`; empty for a noun that is a part of another one."""
    of_app: bool
    """It belongs to an app and not to an instance of it: the publishers of the app see its changes."""

    def __new__(cls, value: str, prefix: str, collection: str, of_app: bool = False) -> Self:
        noun = str.__new__(cls, value)
        noun._value_ = value
        noun.prefix, noun.collection, noun.of_app = prefix, collection, of_app
        return noun

    def href(self, id: str) -> str:
        return f"{API_PREFIX}{self.collection}/{id}"

    TENANT = "tenant", "ten", "/tenants"
    PROJECT = "project", "prj", "/projects"
    USER = "user", "usr", "/users"
    MEMBERSHIP = "membership", "mbs", "/memberships"
    SERVICE_ACCOUNT = "service_account", "sva", "/service-accounts"
    NODE = "node", "nod", "/nodes"
    JOIN_TOKEN = "join_token", "jtk", "/join-tokens"
    ALLOCATION = "allocation", "alc", "/allocations"
    APP_VERSION = "app_version", "apv", "/app-versions", _OF_APP
    ENTITLEMENT = "entitlement", "ent", "/entitlements", _OF_APP
    ARTIFACT = "artifact", "art", "/artifacts", _OF_APP
    TRUSTED_KEY = "trusted_key", "tky", "/trusted-keys", _OF_APP
    INSTANCE = "instance", "ins", "/app-instances"
    MEMBER = "member", "mem", "/members"
    OPERATION = "operation", "op", "/operations"
    RECONCILE_LEASE = "reconcile_lease", "", ""
    """Named by its instance."""
    PREFLIGHT = "preflight", "pfl", "/preflights"
    APP_USAGE = "app_usage", "apu", "/app-usage"
    """A report of usage; its changes are named by the instance."""
    BULK = "bulk", "blk", "/bulk-operations"
    DELIVERY = "delivery", "dlv", "/deliveries"
    QUOTA = "quota", "", ""
    """Named by its project."""
    VOLUME = "volume", "vol", "/volumes"
    CREDENTIAL = "credential", "crd", "/credentials"
    SECRET = "secret", "sec", "/secrets"
    GRANT = "grant", "grt", "/grants"
    SSH_KEY = "ssh_key", "ssk", "/users/me/ssh-keys"
    SSH_AUTHORITY = "ssh_authority", "", "/ssh-authorities"
    """Named by its owner."""
