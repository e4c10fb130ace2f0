"""History: events of instances, requests, commands on machines, all to be found by their correlation id."""

from alembic import op

revision = "0013"
down_revision = "0012"

_STATEMENTS = [
    """CREATE TABLE instance_events (
           seq bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
           instance_id text NOT NULL,
           at timestamptz NOT NULL DEFAULT clock_timestamp(),
           noun text NOT NULL,
           resource_id text NOT NULL,
           event text NOT NULL,
           message text NOT NULL,
           member_id text,
           operation_id text,
           principal_id text NOT NULL,
           correlation_id text NOT NULL
       )""",
    "CREATE INDEX events_of_instance ON instance_events (instance_id, seq)",
    "CREATE INDEX events_of_correlation ON instance_events (correlation_id, seq)",
    "CREATE INDEX events_age ON instance_events USING brin (at)",
    # What the feed still knows is the beginning of the history.
    """INSERT INTO instance_events (instance_id, at, noun, resource_id, event, message, member_id, operation_id,
                                    principal_id, correlation_id)
       SELECT instance_id, at, noun, resource_id, event, message,
              CASE noun WHEN 'member' THEN resource_id END, CASE noun WHEN 'operation' THEN resource_id END,
              'platform', correlation_id
       FROM changes WHERE instance_id IS NOT NULL ORDER BY seq""",
    """CREATE TABLE request_records (
           seq bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
           at timestamptz NOT NULL,
           method text NOT NULL,
           route text NOT NULL,
           status int NOT NULL,
           principal_id text,
           duration_ms real NOT NULL,
           correlation_id text NOT NULL,
           tenant_id text,
           project_id text
       )""",
    "CREATE INDEX requests_of_correlation ON request_records (correlation_id, seq)",
    "CREATE INDEX requests_age ON request_records USING brin (at)",
    "ALTER TABLE operation_steps ADD COLUMN commands jsonb NOT NULL DEFAULT '[]'",
    "CREATE INDEX operations_of_correlation ON operations (correlation_id)",
    "CREATE INDEX audit_of_correlation ON audit_entries (correlation_id)",
    "CREATE INDEX changes_of_correlation ON changes (correlation_id)",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
