"""Grants: people with a user of their own on machines, and their own SSH keys."""

from alembic import op

revision = "0011"
down_revision = "0010"

_OWNED = """revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now()"""

_STATEMENTS = [
    "CREATE SEQUENCE unix_uids START 10001 MAXVALUE 59999 NO CYCLE",
    # No foreign key: the number of somebody who is gone is nobody else's, for files with it may still be around.
    """CREATE TABLE unix_users (
           user_id text PRIMARY KEY,
           login text NOT NULL UNIQUE,
           uid int NOT NULL UNIQUE,
           created_at timestamptz NOT NULL DEFAULT now()
       )""",
    f"""CREATE TABLE ssh_keys (
           id text PRIMARY KEY,
           user_id text NOT NULL REFERENCES users,
           name text NOT NULL,
           key_type text NOT NULL,
           bits int NOT NULL,
           public_key text NOT NULL,
           fingerprint text NOT NULL,
           {_OWNED},
           UNIQUE (user_id, name),
           UNIQUE (user_id, fingerprint)
       )""",
    f"""CREATE TABLE grants (
           id text PRIMARY KEY,
           allocation_id text NOT NULL REFERENCES allocations,
           tenant_id text NOT NULL REFERENCES tenants,
           project_id text REFERENCES projects,
           user_id text NOT NULL,
           email text NOT NULL,
           login text NOT NULL,
           uid int NOT NULL,
           sudo boolean NOT NULL,
           expires_at timestamptz,
           status text NOT NULL DEFAULT 'pending',
           reason text NOT NULL DEFAULT '',
           task_id text,
           granted_by text NOT NULL,
           ended_at timestamptz,
           {_OWNED}
       )""",
    """CREATE UNIQUE INDEX grant_live ON grants (allocation_id, user_id)
       WHERE status IN ('pending', 'active', 'failed')""",
    "CREATE INDEX grants_of_allocation ON grants (allocation_id, id)",
    "CREATE INDEX grants_of_user ON grants (user_id, id)",
    "CREATE INDEX grants_ending ON grants (expires_at) WHERE status IN ('pending', 'active', 'failed', 'revoking')",
    "ALTER TABLE access_grants ADD COLUMN grant_id text REFERENCES grants",
    "CREATE INDEX access_grants_of_grant ON access_grants (grant_id) WHERE ended_at IS NULL",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
