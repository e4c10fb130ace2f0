"""SSH authorities have versions: two are valid while one takes the place of another."""

from alembic import op

revision = "0012"
down_revision = "0011"

_STATEMENTS = [
    # No row stands for an authority that nobody has used yet, or that was made before there were versions.
    """CREATE TABLE ssh_authorities (
           owner_id text NOT NULL,
           version int NOT NULL,
           state text NOT NULL,
           public_key text NOT NULL,
           fingerprint text NOT NULL,
           created_at timestamptz NOT NULL DEFAULT now(),
           retired_at timestamptz,
           PRIMARY KEY (owner_id, version)
       )""",
    """ALTER TABLE allocations ADD COLUMN authority_oldest int NOT NULL DEFAULT 1,
       ADD COLUMN authority_newest int NOT NULL DEFAULT 1""",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
