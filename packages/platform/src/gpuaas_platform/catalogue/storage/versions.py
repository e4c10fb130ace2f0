"""Published app versions, and deliveries of artifacts to machines."""

from typing import Any

from gpuaas_platform.catalogue.records import AppVersionRecord, AppVersionSummary, AppView, DeliveryChange, DeliveryView
from gpuaas_platform.core.database import Transaction


async def insert_version(
    tx: Transaction, id: str, app_slug: str, version: str, manifest: dict[str, Any]
) -> AppVersionRecord | None:
    return await tx.find(
        AppVersionRecord,
        """INSERT INTO app_versions (id, app_slug, version, manifest)
           VALUES (%(id)s, %(slug)s, %(version)s, %(manifest)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        slug=app_slug,
        version=version,
        manifest=manifest,
    )


async def get_version(tx: Transaction, app_slug: str, version: str) -> AppVersionRecord | None:
    return await tx.find(
        AppVersionRecord,
        "SELECT * FROM app_versions WHERE app_slug = %(slug)s AND version = %(version)s",
        slug=app_slug,
        version=version,
    )


async def is_in_use(tx: Transaction, version_id: str, project_ids: list[str], tenant_ids: list[str]) -> bool:
    """Whether an instance in these projects or tenants has this version, and has not ended."""
    row = await tx.one(
        """SELECT 1 FROM instances i JOIN projects p ON p.id = i.project_id
           WHERE i.app_version_id = %(id)s AND i.ended_at IS NULL
             AND (i.project_id = ANY(%(projects)s::text[]) OR p.tenant_id = ANY(%(tenants)s::text[])) LIMIT 1""",
        id=version_id,
        projects=project_ids,
        tenants=tenant_ids,
    )
    return row is not None


async def get_version_by_id(tx: Transaction, id: str) -> AppVersionRecord | None:
    return await tx.find(AppVersionRecord, "SELECT * FROM app_versions WHERE id = %(id)s", id=id)


async def lock_version(tx: Transaction, id: str) -> AppVersionRecord | None:
    return await tx.find(AppVersionRecord, "SELECT * FROM app_versions WHERE id = %(id)s FOR UPDATE", id=id)


async def set_status(tx: Transaction, id: str, status: str, reason: str) -> AppVersionRecord:
    return await tx.fetch(
        AppVersionRecord,
        """UPDATE app_versions SET status = %(status)s, reason = %(reason)s, revision = revision + 1,
               updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=id,
        status=status,
        reason=reason,
    )


async def latest_version(tx: Transaction, app_slug: str) -> AppVersionRecord | None:
    """The newest that can be deployed without naming it."""
    return await tx.find(
        AppVersionRecord,
        """SELECT * FROM app_versions WHERE app_slug = %(slug)s AND status = 'published'
           ORDER BY id DESC LIMIT 1""",
        slug=app_slug,
    )


async def newest_version(tx: Transaction, app_slug: str) -> AppVersionRecord | None:
    return await tx.find(
        AppVersionRecord, "SELECT * FROM app_versions WHERE app_slug = %(slug)s ORDER BY id DESC LIMIT 1", slug=app_slug
    )


async def list_versions(tx: Transaction, app_slug: str, after: str, limit: int) -> list[AppVersionSummary]:
    return await tx.fetch_all(
        AppVersionSummary,
        """SELECT id, app_slug, version, status, reason, manifest->'runtime' AS runtime, revision, created_at,
                  updated_at
           FROM app_versions WHERE app_slug = %(slug)s AND id > %(after)s ORDER BY id LIMIT %(limit)s""",
        slug=app_slug,
        after=after,
        limit=limit,
    )


async def list_apps(
    tx: Transaction, tenant_ids: list[str] | None, own: list[str], after: str, limit: int
) -> list[AppView]:
    """Each with the version that a deploy would take. `tenant_ids` is None for those who see all; others see what
    their tenants are entitled to, and their own apps."""
    return await tx.fetch_all(
        AppView,
        """SELECT app_slug AS id, * FROM (
               SELECT DISTINCT ON (app_slug) app_slug, version, status, manifest, created_at FROM app_versions
               ORDER BY app_slug, status <> 'published', status = 'retired', id DESC) latest
           WHERE app_slug > %(after)s
             AND (%(tenants)s::text[] IS NULL OR app_slug = ANY(%(own)s::text[]) OR app_slug IN (
                 SELECT app_slug FROM entitlements WHERE tenant_id = ANY(%(tenants)s)))
           ORDER BY app_slug LIMIT %(limit)s""",
        tenants=tenant_ids,
        own=own,
        after=after,
        limit=limit,
    )


async def find_delivered_repository(tx: Transaction, digest: str, node_id: str) -> str | None:
    """Where an open task of the node finds the file: a node may fetch nothing else."""
    row = await tx.one(
        """SELECT spec->>'repository' AS repository FROM node_tasks
           WHERE node_id = %(node)s AND state = 'queued' AND spec->>'digest' = %(digest)s
           ORDER BY id DESC LIMIT 1""",
        node=node_id,
        digest=digest,
    )
    return None if row is None else row["repository"]


async def has_open_delivery(tx: Transaction, node_id: str, repository: str) -> bool:
    """Whether a node that still counts has a file of this repository to fetch."""
    row = await tx.one(
        """SELECT 1 FROM node_tasks t JOIN nodes n ON n.id = t.node_id
           WHERE t.node_id = %(node)s AND t.state = 'queued' AND t.spec->>'repository' = %(repository)s
             AND n.revoked_at IS NULL LIMIT 1""",
        node=node_id,
        repository=repository,
    )
    return row is not None


async def insert_delivery(
    tx: Transaction, id: str, operation_id: str, allocation_id: str, digest: str, task_id: str | None, status: str
) -> DeliveryChange:
    return await tx.fetch(
        DeliveryChange,
        """INSERT INTO deliveries (id, operation_id, allocation_id, digest, task_id, status)
           VALUES (%(id)s, %(operation)s, %(allocation)s, %(digest)s, %(task)s, %(status)s)
           RETURNING *, 1 AS revision""",
        id=id,
        operation=operation_id,
        allocation=allocation_id,
        digest=digest,
        task=task_id,
        status=status,
    )


async def get_delivery(tx: Transaction, id: str) -> DeliveryView | None:
    return await tx.find(
        DeliveryView,
        """SELECT d.*, o.project_id, o.app_slug, o.instance_id, p.tenant_id
           FROM deliveries d JOIN operations o ON o.id = d.operation_id JOIN projects p ON p.id = o.project_id
           WHERE d.id = %(id)s""",
        id=id,
    )


async def finish_delivery(
    tx: Transaction, task_id: str, status: str, path: str | None, reason: str
) -> DeliveryChange | None:
    return await tx.find(
        DeliveryChange,
        """UPDATE deliveries SET status = %(status)s, path = %(path)s, reason = %(reason)s
           WHERE task_id = %(task)s RETURNING *, 2 AS revision""",
        task=task_id,
        status=status,
        path=path,
        reason=reason,
    )
