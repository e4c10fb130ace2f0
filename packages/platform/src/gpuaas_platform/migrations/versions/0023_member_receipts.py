"""Teardown receipts of members that were written off, and a way to find hosts whose firewall differed."""

from alembic import op

revision = "0023"
down_revision = "0022"

_STATEMENTS = (
    # Beside the receipts of instances, not among them: the version before reads one row for each instance there.
    """CREATE TABLE member_receipts (
           member_id text PRIMARY KEY REFERENCES members (id),
           document jsonb NOT NULL,
           correlation_id text NOT NULL,
           key_id text,
           signature text,
           created_at timestamptz NOT NULL DEFAULT now(),
           signed_at timestamptz,
           CHECK ((signature IS NULL) = (key_id IS NULL))
       )""",
    "CREATE INDEX member_receipts_to_sign ON member_receipts (created_at) WHERE signature IS NULL",
    "CREATE INDEX changes_of_impaired_nodes ON changes (resource_id, at) WHERE noun = 'node' AND event = 'impaired'",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
