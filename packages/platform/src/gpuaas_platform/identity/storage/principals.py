"""Who calls: one query per request, so that what was just changed or withdrawn counts at once, everywhere."""

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.records import CookieUser, ServiceAccountPrincipal, TokenUser

# A login counts while it is not over and nobody has withdrawn it.
_USER = """
    SELECT u.id, u.email, u.epoch, u.disabled, u.password_change_required,
           s.id AS session_id, s.last_used_at, s.expires_at,
           coalesce(s.epoch = u.epoch AND s.expires_at > now(), false) AS live,
           coalesce(s.last_used_at < now() - interval '1 minute', false) AS stale,
           (SELECT coalesce(jsonb_agg(jsonb_build_object(
                       'role', m.role, 'tenant_id', m.tenant_id, 'project_id', m.project_id,
                       'app_slug', m.app_slug,
                       'seen_tenant_id', coalesce(m.tenant_id, p.tenant_id)) ORDER BY m.id), '[]')
            FROM memberships m LEFT JOIN projects p ON p.id = m.project_id WHERE m.user_id = u.id) AS memberships
"""
_USER_OF_TOKEN = (
    _USER + "FROM users u LEFT JOIN sessions s ON s.user_id = u.id AND s.id = %(session)s WHERE u.id = %(user)s"
)
_USER_OF_COOKIE = _USER + "FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.secret_hash = %(hash)s"


async def get_user(tx: Transaction, user_id: str, session_id: str) -> TokenUser | None:
    return await tx.find(TokenUser, _USER_OF_TOKEN, user=user_id, session=session_id)


async def get_user_of_cookie(tx: Transaction, secret_hash: str) -> CookieUser | None:
    return await tx.find(CookieUser, _USER_OF_COOKIE, hash=secret_hash)


async def get_service_account(tx: Transaction, id: str) -> ServiceAccountPrincipal | None:
    return await tx.find(
        ServiceAccountPrincipal,
        """SELECT s.*, coalesce(s.tenant_id, p.tenant_id) AS seen_tenant_id
           FROM service_accounts s LEFT JOIN projects p ON p.id = s.project_id WHERE s.id = %(id)s""",
        id=id,
    )
