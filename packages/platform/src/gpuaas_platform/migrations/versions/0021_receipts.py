"""Teardown receipts that the platform signs."""

from alembic import op

revision = "0021"
down_revision = "0020"

_STATEMENTS = (
    # Without a signature it is an intent: written with the end of the instance, signed later by a loop.
    """CREATE TABLE receipts (
           instance_id text PRIMARY KEY REFERENCES instances (id),
           document jsonb NOT NULL,
           correlation_id text NOT NULL,
           key_id text,
           signature text,
           created_at timestamptz NOT NULL DEFAULT now(),
           signed_at timestamptz,
           CHECK ((signature IS NULL) = (key_id IS NULL))
       )""",
    "CREATE INDEX receipts_to_sign ON receipts (created_at) WHERE signature IS NULL",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
