"""Who may see which change: whoever may read the thing that changed."""

from gpuaas_contract.nouns import Noun
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope

READ_PERMISSION: dict[str, Permission] = {
    Noun.TENANT: Permission.TENANT_READ,
    Noun.PROJECT: Permission.PROJECT_READ,
    Noun.USER: Permission.USER_MANAGE,
    Noun.MEMBERSHIP: Permission.MEMBERSHIP_CREATE,
    Noun.SERVICE_ACCOUNT: Permission.SERVICE_ACCOUNT_READ,
    Noun.NODE: Permission.NODE_READ,
    Noun.JOIN_TOKEN: Permission.NODE_MANAGE,
    Noun.ALLOCATION: Permission.ALLOCATION_READ,
    Noun.APP_VERSION: Permission.APP_PUBLISH,
    Noun.ENTITLEMENT: Permission.TENANT_READ,
    Noun.ARTIFACT: Permission.ARTIFACT_READ,
    Noun.TRUSTED_KEY: Permission.ARTIFACT_READ,
    Noun.INSTANCE: Permission.INSTANCE_READ,
    Noun.MEMBER: Permission.INSTANCE_READ,
    Noun.OPERATION: Permission.INSTANCE_READ,
    Noun.RECONCILE_LEASE: Permission.INSTANCE_READ,
    Noun.PREFLIGHT: Permission.INSTANCE_READ,
    Noun.APP_USAGE: Permission.USAGE_READ,
    Noun.BULK: Permission.INSTANCE_READ,
    Noun.DELIVERY: Permission.INSTANCE_READ,
    Noun.QUOTA: Permission.QUOTA_READ,
    Noun.VOLUME: Permission.VOLUME_READ,
    Noun.CREDENTIAL: Permission.CREDENTIAL_READ,
    Noun.SECRET: Permission.INSTANCE_READ,
    Noun.GRANT: Permission.ALLOCATION_READ,
    Noun.SSH_KEY: Permission.USER_MANAGE,
    Noun.SSH_AUTHORITY: Permission.SSH_AUTHORITY_READ,
}
"""A noun that is missing here is for those who see the whole platform only."""

OPEN_NOUNS = sorted(noun.value for noun in Noun if noun.of_app and noun != Noun.ENTITLEMENT)
"""Nouns that belong to no tenant, as an entitlement does, and that others than platform admins may see."""


def may_see(caller: Caller, noun: str, scope: Scope) -> bool:
    permission = READ_PERMISSION.get(noun)
    return caller.is_platform_admin if permission is None else caller.may(permission, scope)


class Sight:
    """The changes that one caller may see, remembered for each noun and scope that came by."""

    MOST = 10_000

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._known: dict[tuple[str, str | None, str | None, str | None], bool] = {}

    def sees(self, noun: str, tenant_id: str | None, project_id: str | None, app_slug: str | None) -> bool:
        key = (noun, tenant_id, project_id, app_slug)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self.MOST:
                self._known.clear()
            known = self._known[key] = may_see(self._caller, noun, Scope(tenant_id, project_id, app_slug))
        return known
