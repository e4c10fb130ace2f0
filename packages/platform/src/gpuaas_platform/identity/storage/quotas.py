"""Quotas of projects, and what counts against them."""

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.records import ProjectUse, QuotaRecord


async def get(tx: Transaction, project_id: str) -> QuotaRecord | None:
    return await tx.find(QuotaRecord, "SELECT *, project_id AS id FROM quotas WHERE project_id = %(id)s", id=project_id)


async def lock(tx: Transaction, project_id: str) -> QuotaRecord | None:
    """Whoever claims something in the project holds it, so that two claims never pass one limit together."""
    return await tx.find(
        QuotaRecord, "SELECT *, project_id AS id FROM quotas WHERE project_id = %(id)s FOR UPDATE", id=project_id
    )


async def try_lock(tx: Transaction, project_id: str) -> QuotaRecord | None:
    """None where another transaction has it."""
    return await tx.find(
        QuotaRecord,
        "SELECT *, project_id AS id FROM quotas WHERE project_id = %(id)s FOR UPDATE SKIP LOCKED",
        id=project_id,
    )


async def put(tx: Transaction, project_id: str, limits: dict[str, int | None]) -> QuotaRecord:
    return await tx.fetch(
        QuotaRecord,
        """INSERT INTO quotas (project_id, cpus, memory_mib, disk_gib, gpus, allocations)
           VALUES (%(project)s, %(cpus)s, %(memory_mib)s, %(disk_gib)s, %(gpus)s, %(allocations)s)
           ON CONFLICT (project_id) DO UPDATE SET cpus = %(cpus)s, memory_mib = %(memory_mib)s,
               disk_gib = %(disk_gib)s, gpus = %(gpus)s, allocations = %(allocations)s,
               revision = quotas.revision + 1, updated_at = now()
           RETURNING *, project_id AS id""",
        project=project_id,
        **limits,
    )


async def used(tx: Transaction, project_id: str) -> ProjectUse:
    """All that the project asked for and has not given back; a resize counts with the larger of both sizes."""
    return await tx.fetch(
        ProjectUse,
        """SELECT count(*)::int AS allocations,
                  coalesce(sum(greatest((shape->>'cpus')::int, (wanted_shape->>'cpus')::int)), 0)::int AS cpus,
                  coalesce(sum(greatest((shape->>'memory_mib')::int, (wanted_shape->>'memory_mib')::int)), 0)::int
                      AS memory_mib,
                  coalesce(sum(greatest((shape->>'disk_gib')::int, (wanted_shape->>'disk_gib')::int)), 0)::int
                      + (SELECT coalesce(sum(size_gib), 0)::int FROM volumes
                         WHERE project_id = %(project)s AND status <> 'deleted') AS disk_gib,
                  coalesce(sum(greatest((shape->>'gpus')::int, (wanted_shape->>'gpus')::int)), 0)::int AS gpus
           FROM allocations WHERE project_id = %(project)s
             AND status NOT IN ('releasing', 'release_failed', 'released')""",
        project=project_id,
    )
