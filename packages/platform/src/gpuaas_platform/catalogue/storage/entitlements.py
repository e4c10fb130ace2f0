"""Which tenants may have which apps."""

from collections.abc import Collection

from gpuaas_platform.catalogue.records import EntitlementRecord
from gpuaas_platform.core.database import Transaction


async def insert(tx: Transaction, id: str, tenant_id: str, app_slug: str) -> EntitlementRecord | None:
    return await tx.find(
        EntitlementRecord,
        """INSERT INTO entitlements (id, tenant_id, app_slug) VALUES (%(id)s, %(tenant)s, %(slug)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        tenant=tenant_id,
        slug=app_slug,
    )


async def get(tx: Transaction, id: str) -> EntitlementRecord | None:
    return await tx.find(EntitlementRecord, "SELECT * FROM entitlements WHERE id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> EntitlementRecord | None:
    return await tx.find(EntitlementRecord, "SELECT * FROM entitlements WHERE id = %(id)s FOR UPDATE", id=id)


async def delete(tx: Transaction, id: str) -> None:
    await tx.run("DELETE FROM entitlements WHERE id = %(id)s", id=id)


async def delete_in(tx: Transaction, tenant_id: str) -> list[EntitlementRecord]:
    return await tx.fetch_all(
        EntitlementRecord, "DELETE FROM entitlements WHERE tenant_id = %(tenant)s RETURNING *", tenant=tenant_id
    )


async def any_of(tx: Transaction, tenant_ids: Collection[str], app_slug: str) -> bool:
    row = await tx.one(
        "SELECT 1 FROM entitlements WHERE app_slug = %(slug)s AND tenant_id = ANY(%(tenants)s::text[]) LIMIT 1",
        tenants=list(tenant_ids),
        slug=app_slug,
    )
    return row is not None


async def list_matching(
    tx: Transaction,
    *,
    tenant_id: str | None,
    app_slug: str | None,
    tenants: list[str] | None,
    apps: list[str],
    after: str,
    limit: int,
) -> list[EntitlementRecord]:
    """`tenants` is None for those who see all; others see those of their tenants, and of the apps that are theirs."""
    return await tx.fetch_all(
        EntitlementRecord,
        """SELECT * FROM entitlements WHERE id > %(after)s
             AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
             AND (%(slug)s::text IS NULL OR app_slug = %(slug)s)
             AND (%(tenants)s::text[] IS NULL OR tenant_id = ANY(%(tenants)s) OR app_slug = ANY(%(apps)s::text[]))
           ORDER BY id LIMIT %(limit)s""",
        tenant=tenant_id,
        slug=app_slug,
        tenants=tenants,
        apps=apps,
        after=after,
        limit=limit,
    )
