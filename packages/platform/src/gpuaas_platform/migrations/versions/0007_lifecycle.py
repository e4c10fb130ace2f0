"""Members and operations of every kind: queues, cancelling, bulk, tombstones without proof."""

from alembic import op

revision = "0007"
down_revision = "0006"

_STATEMENTS = [
    # What was reported as ready before `ready_since` was about an instance that has been stopped since.
    """ALTER TABLE instances ADD COLUMN mode text, ADD COLUMN unverified jsonb,
           ADD COLUMN ready_since int NOT NULL DEFAULT 1""",
    """ALTER TABLE members ADD COLUMN observed_runtime text, ADD COLUMN unverified jsonb,
           ADD COLUMN replaces_member_id text REFERENCES members""",
    """CREATE TABLE bulks (
           id text PRIMARY KEY,
           instance_id text NOT NULL REFERENCES instances,
           project_id text NOT NULL,
           kind text NOT NULL,
           policy jsonb NOT NULL,
           results jsonb NOT NULL,
           requested_by text NOT NULL,
           correlation_id text NOT NULL,
           revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now(),
           ended_at timestamptz
       )""",
    "CREATE INDEX bulks_of_instance ON bulks (instance_id, id)",
    # `number` is taken under the lock of the instance: the order in which its operations were asked for.
    # `undo` is what to give back to the instance where an operation is cancelled before anybody claimed it.
    """ALTER TABLE operations ADD COLUMN number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
           ADD COLUMN queued boolean NOT NULL DEFAULT false,
           ADD COLUMN deadline_seconds int,
           ADD COLUMN replacement_member_id text REFERENCES members,
           ADD COLUMN bulk_id text REFERENCES bulks,
           ADD COLUMN cancel_requested boolean NOT NULL DEFAULT false,
           ADD COLUMN undo jsonb,
           ADD COLUMN expiry_noticed boolean NOT NULL DEFAULT false""",
    "CREATE INDEX operations_of_bulk ON operations (bulk_id) WHERE bulk_id IS NOT NULL",
    "CREATE INDEX operations_queued ON operations (instance_id, number) WHERE queued",
    "CREATE INDEX operations_of_member ON operations (member_id, number)",
    "DROP INDEX one_open_operation_per_member",
    """CREATE UNIQUE INDEX one_open_operation_per_member ON operations (member_id)
           WHERE state IN ('pending', 'running') AND NOT queued""",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
