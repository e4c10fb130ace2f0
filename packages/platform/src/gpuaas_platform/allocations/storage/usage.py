"""Usage records. A unique key makes each interval one, whatever is repeated after a crash."""

from gpuaas_contract import ids
from gpuaas_contract.allocations import Shape
from gpuaas_platform.allocations.records import AllocationRecord, UsageView
from gpuaas_platform.core.database import Transaction


async def begin(tx: Transaction, kind: str, allocation: AllocationRecord) -> None:
    await tx.run(
        """INSERT INTO usage_records (id, kind, tenant_id, project_id, allocation_id, shapes)
           VALUES (%(id)s, %(kind)s, %(tenant)s, %(project)s, %(allocation)s,
                   jsonb_build_array(jsonb_build_object('since', now(), 'shape', %(shape)s::jsonb)))
           ON CONFLICT DO NOTHING""",
        id=ids.new_id(ids.USAGE),
        kind=kind,
        tenant=allocation.tenant_id,
        project=allocation.project_id,
        allocation=allocation.id,
        shape=allocation.shape.model_dump(mode="json"),
    )


async def reshape(tx: Transaction, allocation_id: str, shape: Shape) -> None:
    await tx.run(
        """UPDATE usage_records
           SET shapes = shapes || jsonb_build_array(jsonb_build_object('since', now(), 'shape', %(shape)s::jsonb))
           WHERE allocation_id = %(allocation)s AND ended_at IS NULL""",
        allocation=allocation_id,
        shape=shape.model_dump(mode="json"),
    )


async def end(tx: Transaction, kind: str, allocation_id: str) -> None:
    await tx.run(
        """UPDATE usage_records SET ended_at = now()
           WHERE allocation_id = %(allocation)s AND kind = %(kind)s AND ended_at IS NULL""",
        allocation=allocation_id,
        kind=kind,
    )


async def list_matching(
    tx: Transaction, owner_ids: list[str] | None, allocation_id: str | None, kind: str | None, after: str, limit: int
) -> list[UsageView]:
    return await tx.fetch_all(
        UsageView,
        """SELECT u.*, a.name AS allocation_name,
                  extract(epoch FROM coalesce(u.ended_at, now()) - u.started_at)::float8 AS seconds
           FROM usage_records u JOIN allocations a ON a.id = u.allocation_id
           WHERE u.id > %(after)s AND (%(owners)s::text[] IS NULL OR u.owner_id = ANY(%(owners)s))
             AND (%(allocation)s::text IS NULL OR u.allocation_id = %(allocation)s)
             AND (%(kind)s::text IS NULL OR u.kind = %(kind)s)
           ORDER BY u.id LIMIT %(limit)s""",
        owners=owner_ids,
        allocation=allocation_id,
        kind=kind,
        after=after,
        limit=limit,
    )
