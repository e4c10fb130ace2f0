"""Access credentials and run-time secrets: all about them but themselves, which lie in OpenBao."""

from alembic import op

revision = "0006"
down_revision = "0005"

_OWNED = """revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now(),
           deleted_at timestamptz"""

_STATEMENTS = [
    f"""CREATE TABLE credentials (
           id text PRIMARY KEY,
           project_id text NOT NULL REFERENCES projects,
           name text NOT NULL,
           status text NOT NULL DEFAULT 'active',
           {_OWNED}
       )""",
    "CREATE UNIQUE INDEX credential_live_name ON credentials (project_id, name) WHERE deleted_at IS NULL",
    """CREATE TRIGGER no_ended_project BEFORE INSERT ON credentials
       FOR EACH ROW EXECUTE FUNCTION refuse_ended_project()""",
    f"""CREATE TABLE secrets (
           id text PRIMARY KEY,
           project_id text NOT NULL REFERENCES projects,
           instance_id text NOT NULL REFERENCES instances,
           name text NOT NULL,
           spec jsonb NOT NULL,
           {_OWNED},
           UNIQUE (instance_id, name)
       )""",
    # A row before anything is written to OpenBao, at a path made from it; none is ever used for a second value.
    # No foreign key to the owner: it appears when its first value is kept.
    """CREATE TABLE secret_versions (
           owner_id text NOT NULL,
           version int NOT NULL,
           project_id text NOT NULL REFERENCES projects,
           state text NOT NULL DEFAULT 'writing',
           request_key text,
           origin text,
           key_type text,
           bits int,
           public_key text,
           fingerprint text,
           created_at timestamptz NOT NULL DEFAULT now(),
           valid_at timestamptz,
           ended_at timestamptz,
           PRIMARY KEY (owner_id, version)
       )""",
    "CREATE INDEX secret_versions_unsettled ON secret_versions (created_at) WHERE state IN ('writing', 'ending')",
    """CREATE TABLE secret_deliveries (
           id text PRIMARY KEY,
           owner_id text NOT NULL,
           version int NOT NULL,
           operation_id text NOT NULL REFERENCES operations,
           fencing_token bigint NOT NULL,
           principal_id text NOT NULL,
           state text NOT NULL DEFAULT 'wrapping',
           token_hash text,
           expires_at timestamptz,
           created_at timestamptz NOT NULL DEFAULT now(),
           FOREIGN KEY (owner_id, version) REFERENCES secret_versions
       )""",
    "CREATE INDEX secret_deliveries_of_lease ON secret_deliveries (fencing_token, owner_id)",
    "CREATE INDEX secret_deliveries_age ON secret_deliveries (created_at)",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
