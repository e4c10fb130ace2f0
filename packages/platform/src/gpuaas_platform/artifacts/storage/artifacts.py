"""Facts about the artifacts in the registry."""

from gpuaas_contract.artifacts import ArtifactRegister
from gpuaas_platform.artifacts.records import ArtifactRecord, ArtifactView
from gpuaas_platform.artifacts.rules.oci import ArtifactFacts
from gpuaas_platform.core.database import Transaction

_SELECT = """
    SELECT a.*, p.tenant_id FROM registry_artifacts a LEFT JOIN projects p ON p.id = a.project_id
    WHERE a.deleted_at IS NULL
"""


async def insert(
    tx: Transaction, id: str, repository: str, body: ArtifactRegister, facts: ArtifactFacts
) -> ArtifactRecord | None:
    return await tx.find(
        ArtifactRecord,
        """INSERT INTO registry_artifacts (id, app_slug, project_id, name, repository, digest, artifact_type,
                                           media_type, content_digest, size, file_name)
           VALUES (%(id)s, %(slug)s, %(project)s, %(name)s, %(repository)s, %(digest)s, %(artifact_type)s,
                   %(media_type)s, %(content_digest)s, %(size)s, %(file_name)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        slug=body.app_slug,
        project=body.project_id,
        name=body.name,
        repository=repository,
        digest=body.digest,
        artifact_type=facts.artifact_type,
        media_type=facts.media_type,
        content_digest=facts.content_digest,
        size=facts.size,
        file_name=facts.file_name,
    )


async def sum_sizes(tx: Transaction, app_slug: str | None, project_id: str | None) -> tuple[int, int]:
    """Bytes of the registered files of one owner, and of all; a file that is there twice counts once."""
    row = await tx.one(
        """SELECT coalesce(sum(size) FILTER (WHERE own), 0)::bigint AS own, coalesce(sum(size), 0)::bigint AS total
           FROM (SELECT content_digest, max(size) AS size,
                        bool_or(app_slug = %(app)s OR project_id = %(project)s) AS own
                 FROM registry_artifacts WHERE deleted_at IS NULL GROUP BY content_digest) AS files""",
        app=app_slug,
        project=project_id,
    )
    assert row is not None
    return row["own"], row["total"]


async def get(tx: Transaction, id: str) -> ArtifactView | None:
    return await tx.find(ArtifactView, _SELECT + " AND a.id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> ArtifactView | None:
    await tx.one("SELECT 1 FROM registry_artifacts WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def find(tx: Transaction, repository: str, digest: str) -> ArtifactView | None:
    return await tx.find(
        ArtifactView,
        _SELECT + " AND a.repository = %(repository)s AND a.digest = %(digest)s",
        repository=repository,
        digest=digest,
    )


async def list_of_owner(
    tx: Transaction, app_slug: str | None, project_id: str | None, digest: str
) -> list[ArtifactView]:
    """All with this digest that the app has, or the project; those that may be delivered first."""
    return await tx.fetch_all(
        ArtifactView,
        _SELECT
        + """ AND a.digest = %(digest)s AND (a.app_slug = %(slug)s OR a.project_id = %(project)s)
             ORDER BY a.status <> 'promoted', a.id""",
        digest=digest,
        slug=app_slug,
        project=project_id,
    )


async def list_matching(
    tx: Transaction, project_ids: list[str] | None, app_slugs: list[str] | None, after: str, limit: int
) -> list[ArtifactView]:
    """Of these projects and of these apps; None stands for all of them."""
    return await tx.fetch_all(
        ArtifactView,
        _SELECT
        + """ AND a.id > %(after)s AND (CASE WHEN a.app_slug IS NULL
                 THEN %(projects)s::text[] IS NULL OR a.project_id = ANY(%(projects)s)
                 ELSE %(apps)s::text[] IS NULL OR a.app_slug = ANY(%(apps)s) END)
             ORDER BY a.id LIMIT %(limit)s""",
        projects=project_ids,
        apps=app_slugs,
        after=after,
        limit=limit,
    )


async def update(
    tx: Transaction, id: str, *, status: str | None = None, trusted_key_id: str | None = None, delete: bool = False
) -> ArtifactRecord:
    return await tx.fetch(
        ArtifactRecord,
        """UPDATE registry_artifacts
           SET status = coalesce(%(status)s, status), trusted_key_id = coalesce(%(key)s, trusted_key_id),
               revision = revision + 1, updated_at = now(), deleted_at = CASE WHEN %(delete)s THEN now() END
           WHERE id = %(id)s RETURNING *""",
        id=id,
        status=status,
        key=trusted_key_id,
        delete=delete,
    )
