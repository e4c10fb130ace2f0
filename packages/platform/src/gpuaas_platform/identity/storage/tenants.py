"""Tenants and projects. Those that have ended stay as rows, and are not found any more."""

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.records import ProjectRecord, TenantRecord


async def insert_tenant(tx: Transaction, id: str, name: str, title: str) -> TenantRecord | None:
    return await tx.find(
        TenantRecord,
        """INSERT INTO tenants (id, name, title) VALUES (%(id)s, %(name)s, %(title)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        name=name,
        title=title,
    )


async def get_tenant(tx: Transaction, id: str) -> TenantRecord | None:
    return await tx.find(TenantRecord, "SELECT * FROM tenants WHERE id = %(id)s AND deleted_at IS NULL", id=id)


async def list_tenants(tx: Transaction, seen: list[str] | None, after: str, limit: int) -> list[TenantRecord]:
    """`seen` is None for those who see all."""
    return await tx.fetch_all(
        TenantRecord,
        """SELECT * FROM tenants WHERE id > %(after)s AND deleted_at IS NULL
             AND (%(seen)s::text[] IS NULL OR id = ANY(%(seen)s)) ORDER BY id LIMIT %(limit)s""",
        seen=seen,
        after=after,
        limit=limit,
    )


async def insert_project(tx: Transaction, id: str, tenant_id: str, name: str, title: str) -> ProjectRecord | None:
    return await tx.find(
        ProjectRecord,
        """INSERT INTO projects (id, tenant_id, name, title)
           VALUES (%(id)s, %(tenant_id)s, %(name)s, %(title)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        tenant_id=tenant_id,
        name=name,
        title=title,
    )


async def get_project(tx: Transaction, id: str) -> ProjectRecord | None:
    return await tx.find(ProjectRecord, "SELECT * FROM projects WHERE id = %(id)s AND deleted_at IS NULL", id=id)


async def list_projects(
    tx: Transaction, seen: list[str] | None, tenants: list[str], tenant_id: str | None, after: str, limit: int
) -> list[ProjectRecord]:
    return await tx.fetch_all(
        ProjectRecord,
        """SELECT * FROM projects WHERE id > %(after)s AND deleted_at IS NULL
             AND (%(seen)s::text[] IS NULL OR id = ANY(%(seen)s) OR tenant_id = ANY(%(tenants)s::text[]))
             AND (%(tenant_id)s::text IS NULL OR tenant_id = %(tenant_id)s)
           ORDER BY id LIMIT %(limit)s""",
        seen=seen,
        tenants=tenants,
        tenant_id=tenant_id,
        after=after,
        limit=limit,
    )


async def lock_tenant(tx: Transaction, id: str) -> TenantRecord | None:
    """Nothing new can come into it while this is held."""
    return await tx.find(
        TenantRecord, "SELECT * FROM tenants WHERE id = %(id)s AND deleted_at IS NULL FOR UPDATE", id=id
    )


async def ensure_network(tx: Transaction, tenant_id: str) -> None:
    """Number the network of the tenant's own machines, from the same range as those of projects."""
    await tx.run(
        """UPDATE tenants SET network_index = nextval('project_network_index')
           WHERE id = %(id)s AND network_index IS NULL""",
        id=tenant_id,
    )


async def set_tenant_title(tx: Transaction, id: str, title: str) -> TenantRecord:
    return await tx.fetch(
        TenantRecord,
        """UPDATE tenants SET title = %(title)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        title=title,
    )


async def end_tenant(tx: Transaction, id: str) -> TenantRecord:
    return await tx.fetch(
        TenantRecord,
        """UPDATE tenants SET deleted_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )


async def lock_project(tx: Transaction, id: str) -> ProjectRecord | None:
    """Nothing new can come into it while this is held."""
    return await tx.find(
        ProjectRecord, "SELECT * FROM projects WHERE id = %(id)s AND deleted_at IS NULL FOR UPDATE", id=id
    )


async def set_project_title(tx: Transaction, id: str, title: str) -> ProjectRecord:
    return await tx.fetch(
        ProjectRecord,
        """UPDATE projects SET title = %(title)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        title=title,
    )


async def end_project(tx: Transaction, id: str) -> ProjectRecord:
    return await tx.fetch(
        ProjectRecord,
        """UPDATE projects SET deleted_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )


async def count_in_tenant(tx: Transaction, id: str) -> dict[str, int]:
    row = await tx.one(
        """SELECT (SELECT count(*) FROM projects WHERE tenant_id = %(id)s AND deleted_at IS NULL) AS projects,
                  (SELECT count(*) FROM allocations
                   WHERE tenant_id = %(id)s AND project_id IS NULL AND status <> 'released') AS allocations,
                  (SELECT count(*) FROM service_accounts WHERE tenant_id = %(id)s) AS service_accounts""",
        id=id,
    )
    assert row is not None
    return dict(row)


async def count_in_project(tx: Transaction, id: str) -> dict[str, int]:
    row = await tx.one(
        """SELECT (SELECT count(*) FROM instances WHERE project_id = %(id)s AND ended_at IS NULL) AS instances,
                  (SELECT count(*) FROM allocations WHERE project_id = %(id)s AND status <> 'released')
                      AS allocations,
                  (SELECT count(*) FROM volumes WHERE project_id = %(id)s AND status <> 'deleted') AS volumes,
                  (SELECT count(*) FROM service_accounts WHERE project_id = %(id)s) AS service_accounts,
                  (SELECT count(*) FROM credentials WHERE project_id = %(id)s AND deleted_at IS NULL)
                      AS credentials,
                  (SELECT count(*) FROM registry_artifacts WHERE project_id = %(id)s AND deleted_at IS NULL)
                      AS artifacts""",
        id=id,
    )
    assert row is not None
    return dict(row)
