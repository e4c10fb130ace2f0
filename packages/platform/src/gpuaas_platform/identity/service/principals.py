"""From a record of the database to the caller that the policy knows."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.identity import PrincipalKind, Role
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.records import ServiceAccountPrincipal, UserPrincipal
from gpuaas_platform.identity.rules.policy import CONTROLLER, Caller, RoleGrant


@dataclass(frozen=True, slots=True)
class Authenticated:
    caller: Caller
    expires_at: datetime
    """Of the token or the session."""
    session_id: str | None = None
    """People only: which of their logins this is."""
    csrf_token: str | None = None
    """Set where a browser's cookie said who it is: changes must show this, too."""
    password_change_required: bool = False


def caller_of_user(row: UserPrincipal) -> Caller:
    grants = tuple(RoleGrant(m.role, m.tenant_id, m.project_id, m.app_slug) for m in row.memberships)
    tenants = frozenset(m.seen_tenant_id for m in row.memberships if m.seen_tenant_id)
    return Caller(PrincipalKind.USER, row.id, row.email, grants, tenant_ids=tenants)


def caller_of_service_account(row: ServiceAccountPrincipal) -> Caller:
    roles: list[str] = [row.role] if row.role else []
    if row.app_slug:
        roles.append(CONTROLLER)
    # An account for which nothing was said may look, and no more.
    return Caller(
        PrincipalKind.SERVICE_ACCOUNT,
        row.id,
        row.name,
        tuple(RoleGrant(role, row.tenant_id, row.project_id) for role in roles or [Role.PROJECT_VIEWER]),
        app_slug=row.app_slug,
        tenant_ids=frozenset({row.seen_tenant_id}),
    )


def not_a_person() -> Refusal:
    return Refusal(Code.FORBIDDEN, "this is for people: a service account has no login of this kind", denied=True)


def password_change_required() -> Refusal:
    return Refusal(
        Code.PASSWORD_CHANGE_REQUIRED,
        "your password was good for one login; choose another one first",
        allowed_actions=[
            Offer.CHANGE_OWN_PASSWORD.action("change_password", "Choose another password"),
            Offer.END_SESSION.action("log_out", "Log out"),
        ],
        denied=True,
    )
