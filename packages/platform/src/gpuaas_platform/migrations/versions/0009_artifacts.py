"""Artifacts in the registry, and the keys that are trusted to vouch for them.

The table `artifacts` is of the version before, which kept files itself; a later release removes it."""

from alembic import op

revision = "0009"
down_revision = "0008"

_OWNED = """revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now(),
           deleted_at timestamptz"""
_OWNER = """app_slug text,
           project_id text REFERENCES projects,
           CHECK ((app_slug IS NULL) <> (project_id IS NULL))"""

_STATEMENTS = [
    f"""CREATE TABLE registry_artifacts (
           id text PRIMARY KEY,
           name text NOT NULL,
           repository text NOT NULL,
           digest text NOT NULL,
           status text NOT NULL DEFAULT 'uploaded',
           artifact_type text NOT NULL,
           media_type text NOT NULL,
           content_digest text NOT NULL,
           size bigint NOT NULL,
           file_name text,
           trusted_key_id text,
           {_OWNED},
           {_OWNER}
       )""",
    "CREATE UNIQUE INDEX artifact_live ON registry_artifacts (repository, digest) WHERE deleted_at IS NULL",
    "CREATE INDEX artifact_by_digest ON registry_artifacts (digest) WHERE deleted_at IS NULL",
    f"""CREATE TABLE trusted_keys (
           id text PRIMARY KEY,
           name text NOT NULL,
           algorithm text NOT NULL,
           fingerprint text NOT NULL,
           public_key_pem text NOT NULL,
           {_OWNED},
           {_OWNER}
       )""",
    """CREATE UNIQUE INDEX trusted_key_live_name ON trusted_keys (coalesce(project_id, app_slug), name)
       WHERE deleted_at IS NULL""",
    *(
        f"""CREATE TRIGGER no_ended_project BEFORE INSERT ON {table}
            FOR EACH ROW EXECUTE FUNCTION refuse_ended_project()"""
        for table in ("registry_artifacts", "trusted_keys")
    ),
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
