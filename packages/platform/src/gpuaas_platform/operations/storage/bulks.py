"""Operations on many members at once."""

from collections.abc import Sequence

from gpuaas_contract.bulk import BulkPolicy, BulkResult
from gpuaas_platform.core.database import Transaction, json_list
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.operations.records import BulkRecord, BulkView, OperationRecord, policy_document

_SELECT = """
    SELECT b.*, i.app_slug, p.tenant_id,
           coalesce((SELECT jsonb_object_agg(o.id, o.state) FROM operations o WHERE o.bulk_id = b.id), '{}') AS states
    FROM bulks b JOIN instances i ON i.id = b.instance_id JOIN projects p ON p.id = b.project_id
"""


async def insert(tx: Transaction, id: str, instance: InstanceView, kind: str, policy: BulkPolicy) -> BulkRecord:
    return await tx.fetch(
        BulkRecord,
        """INSERT INTO bulks (id, instance_id, project_id, kind, policy, results, requested_by, correlation_id)
           VALUES (%(id)s, %(instance)s, %(project)s, %(kind)s, %(policy)s, '[]', %(principal)s, %(correlation)s)
           RETURNING *""",
        id=id,
        instance=instance.id,
        project=instance.project_id,
        kind=kind,
        policy=policy_document(policy),
        principal=tx.principal_id,
        correlation=tx.correlation_id,
    )


async def set_results(tx: Transaction, id: str, results: Sequence[BulkResult]) -> None:
    """Store the results, without the states of their operations: those go on changing."""
    documents = [result.model_dump(mode="json", exclude={"state"}) for result in results]
    await tx.run("UPDATE bulks SET results = %(results)s WHERE id = %(id)s", id=id, results=json_list(documents))


async def get(tx: Transaction, id: str) -> BulkView | None:
    return await tx.find(BulkView, _SELECT + " WHERE b.id = %(id)s", id=id)


async def list_of_instance(tx: Transaction, instance_id: str, after: str, limit: int) -> list[BulkView]:
    return await tx.fetch_all(
        BulkView,
        _SELECT + " WHERE b.instance_id = %(instance)s AND b.id > %(after)s ORDER BY b.id LIMIT %(limit)s",
        instance=instance_id,
        after=after,
        limit=limit,
    )


async def touch(tx: Transaction, id: str, *, ended: bool) -> BulkRecord:
    return await tx.fetch(
        BulkRecord,
        """UPDATE bulks SET ended_at = CASE WHEN %(ended)s THEN now() END, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        ended=ended,
    )


async def list_unclaimed(tx: Transaction, id: str) -> list[OperationRecord]:
    return await tx.fetch_all(
        OperationRecord,
        """SELECT * FROM operations WHERE bulk_id = %(id)s AND state = 'pending' AND attempt = 0
           ORDER BY number FOR UPDATE""",
        id=id,
    )
