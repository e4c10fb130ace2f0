"""Keys whose signatures an app or a project believes."""

from gpuaas_contract.artifacts import TrustedKeyCreate
from gpuaas_platform.artifacts.records import TrustedKeyRecord, TrustedKeyView
from gpuaas_platform.artifacts.rules.signatures import ReadKey
from gpuaas_platform.core.database import Transaction

_SELECT = """
    SELECT k.*, p.tenant_id FROM trusted_keys k LEFT JOIN projects p ON p.id = k.project_id
    WHERE k.deleted_at IS NULL
"""


async def insert(tx: Transaction, id: str, body: TrustedKeyCreate, key: ReadKey) -> TrustedKeyRecord | None:
    return await tx.find(
        TrustedKeyRecord,
        """INSERT INTO trusted_keys (id, app_slug, project_id, name, algorithm, fingerprint, public_key_pem)
           VALUES (%(id)s, %(slug)s, %(project)s, %(name)s, %(algorithm)s, %(fingerprint)s, %(pem)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        slug=body.app_slug,
        project=body.project_id,
        name=body.name,
        algorithm=key.algorithm,
        fingerprint=key.fingerprint,
        pem=key.pem,
    )


async def get(tx: Transaction, id: str) -> TrustedKeyView | None:
    return await tx.find(TrustedKeyView, _SELECT + " AND k.id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> TrustedKeyView | None:
    await tx.one("SELECT 1 FROM trusted_keys WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def list_of_owner(tx: Transaction, app_slug: str | None, project_id: str | None) -> list[TrustedKeyView]:
    return await tx.fetch_all(
        TrustedKeyView,
        _SELECT + " AND (k.app_slug = %(slug)s OR k.project_id = %(project)s) ORDER BY k.id",
        slug=app_slug,
        project=project_id,
    )


async def list_matching(
    tx: Transaction, project_ids: list[str] | None, app_slugs: list[str] | None, after: str, limit: int
) -> list[TrustedKeyView]:
    return await tx.fetch_all(
        TrustedKeyView,
        _SELECT
        + """ AND k.id > %(after)s AND (CASE WHEN k.app_slug IS NULL
                 THEN %(projects)s::text[] IS NULL OR k.project_id = ANY(%(projects)s)
                 ELSE %(apps)s::text[] IS NULL OR k.app_slug = ANY(%(apps)s) END)
             ORDER BY k.id LIMIT %(limit)s""",
        projects=project_ids,
        apps=app_slugs,
        after=after,
        limit=limit,
    )


async def delete(tx: Transaction, id: str) -> TrustedKeyRecord:
    return await tx.fetch(
        TrustedKeyRecord,
        """UPDATE trusted_keys SET revision = revision + 1, updated_at = now(), deleted_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )
