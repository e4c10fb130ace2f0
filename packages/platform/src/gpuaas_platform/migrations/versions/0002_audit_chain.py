"""Hash-chained audit batches per tenant."""

from alembic import op

revision = "0002"
down_revision = "0001"

_STATEMENTS = [
    """ALTER TABLE audit_entries
           ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY,
           ADD COLUMN chain text NOT NULL DEFAULT 'platform',
           ADD COLUMN position bigint,
           ADD COLUMN batch bigint,
           ADD COLUMN outcome text NOT NULL DEFAULT 'succeeded',
           ADD COLUMN fingerprint text NOT NULL DEFAULT ''""",
    "CREATE UNIQUE INDEX audit_chain_order ON audit_entries (chain, position)",
    "CREATE INDEX audit_unsealed ON audit_entries (seq) WHERE position IS NULL",
    """CREATE TABLE audit_batches (
           chain text NOT NULL,
           number bigint NOT NULL,
           first_position bigint NOT NULL,
           last_position bigint NOT NULL,
           hash text NOT NULL,
           checkpointed boolean NOT NULL DEFAULT false,
           PRIMARY KEY (chain, number)
       )""",
    "CREATE INDEX audit_batches_to_checkpoint ON audit_batches (chain, number) WHERE NOT checkpointed",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
