"""When controllers were last heard of."""

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.records import ControllerPresence, OperatorRecord

CONNECTED_SECONDS = 60
"""Twice the longest wait for changes: a controller that waits says nothing meanwhile."""
OPERATOR = f"""
    SELECT s.name, s.app_slug, s.disabled, c.seen_at,
           coalesce(c.seen_at > now() - interval '{CONNECTED_SECONDS} seconds', false) AS connected
    FROM service_accounts s LEFT JOIN controller_presence c ON c.account_id = s.id
"""  # noqa: S608 - constants
"""A service account, and whether its controller is connected."""


async def get_operator(tx: Transaction, account_id: str, tenant_id: str, project_id: str) -> OperatorRecord | None:
    return await tx.find(
        OperatorRecord,
        f"""SELECT o.*, (a.project_id = %(project)s OR a.tenant_id = %(tenant)s) IS TRUE AS usable
            FROM ({OPERATOR} WHERE s.id = %(id)s) o, service_accounts a WHERE a.id = %(id)s""",  # noqa: S608 - constants
        id=account_id,
        tenant=tenant_id,
        project=project_id,
    )


async def note(tx: Transaction, account_id: str) -> None:
    await tx.run(
        """INSERT INTO controller_presence (account_id, seen_at) VALUES (%(id)s, now())
           ON CONFLICT (account_id) DO UPDATE SET seen_at = now()""",
        id=account_id,
    )


async def last_seen(
    tx: Transaction, app_slug: str, tenant_id: str, project_id: str, seconds: int
) -> ControllerPresence | None:
    """The account of the app that was heard of last in this project, and whether that was lately."""
    return await tx.find(
        ControllerPresence,
        """SELECT s.name, c.seen_at,
                  coalesce(c.seen_at > now() - make_interval(secs => %(seconds)s), false) AS connected
           FROM service_accounts s LEFT JOIN controller_presence c ON c.account_id = s.id
           WHERE s.app_slug = %(app)s AND NOT s.disabled
             AND (s.project_id = %(project)s OR s.tenant_id = %(tenant)s)
           ORDER BY c.seen_at DESC NULLS LAST LIMIT 1""",
        app=app_slug,
        tenant=tenant_id,
        project=project_id,
        seconds=seconds,
    )
