"""Access credentials."""

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.vault.records import CredentialRecord, CredentialView

_SELECT = """
    SELECT c.*, p.tenant_id FROM credentials c JOIN projects p ON p.id = c.project_id
    WHERE c.deleted_at IS NULL
"""


async def insert(tx: Transaction, id: str, project_id: str, name: str) -> CredentialRecord | None:
    return await tx.find(
        CredentialRecord,
        """INSERT INTO credentials (id, project_id, name) VALUES (%(id)s, %(project)s, %(name)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        project=project_id,
        name=name,
    )


async def get(tx: Transaction, id: str) -> CredentialView | None:
    return await tx.find(CredentialView, _SELECT + " AND c.id = %(id)s", id=id)


async def get_by_name(tx: Transaction, project_id: str, name: str) -> CredentialView | None:
    return await tx.find(
        CredentialView, _SELECT + " AND c.project_id = %(project)s AND c.name = %(name)s", project=project_id, name=name
    )


async def lock(tx: Transaction, id: str) -> CredentialView | None:
    await tx.one("SELECT 1 FROM credentials WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def list_matching(tx: Transaction, project_ids: list[str] | None, after: str, limit: int) -> list[CredentialView]:
    return await tx.fetch_all(
        CredentialView,
        _SELECT
        + """ AND c.id > %(after)s AND (%(projects)s::text[] IS NULL OR c.project_id = ANY(%(projects)s))
             ORDER BY c.id LIMIT %(limit)s""",
        projects=project_ids,
        after=after,
        limit=limit,
    )


async def touch(tx: Transaction, id: str, *, status: str | None = None, delete: bool = False) -> CredentialRecord:
    return await tx.fetch(
        CredentialRecord,
        """UPDATE credentials SET status = coalesce(%(status)s, status), revision = revision + 1, updated_at = now(),
               deleted_at = CASE WHEN %(delete)s THEN now() END
           WHERE id = %(id)s RETURNING *""",
        id=id,
        status=status,
        delete=delete,
    )
