"""Reconcile leases, connected controllers, preflights, usage that apps report, credentials that a deploy chose."""

from alembic import op

revision = "0008"
down_revision = "0007"

_STATEMENTS = [
    """CREATE TABLE reconcile_leases (
           instance_id text PRIMARY KEY REFERENCES instances,
           holder text NOT NULL,
           account_id text NOT NULL,
           fencing_token bigint NOT NULL,
           claimed_at timestamptz NOT NULL DEFAULT now(),
           expires_at timestamptz NOT NULL
       )""",
    "ALTER TABLE access_grants ADD COLUMN reconciled_instance_id text REFERENCES instances",
    """CREATE INDEX access_grants_of_reconcile ON access_grants (reconciled_instance_id) WHERE ended_at IS NULL""",
    # Beside the accounts, not in them: who is there changes all the time and is no change of an account.
    """CREATE TABLE controller_presence (
           account_id text PRIMARY KEY REFERENCES service_accounts ON DELETE CASCADE,
           seen_at timestamptz NOT NULL
       )""",
    """CREATE TABLE preflights (
           id text PRIMARY KEY,
           project_id text NOT NULL REFERENCES projects,
           instance_id text REFERENCES instances,
           app_slug text NOT NULL,
           version text,
           kind text NOT NULL,
           request jsonb NOT NULL,
           allocation_ids text[] NOT NULL,
           state text NOT NULL,
           app_checks text NOT NULL,
           findings jsonb NOT NULL,
           operation_id text,
           requested_by text NOT NULL,
           correlation_id text NOT NULL,
           revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now(),
           ended_at timestamptz
       )""",
    "CREATE INDEX preflights_age ON preflights (created_at)",
    # An operation is about an instance, or about something that is only being thought of.
    """ALTER TABLE operations ALTER COLUMN instance_id DROP NOT NULL,
           ADD COLUMN preflight_id text REFERENCES preflights,
           ADD CONSTRAINT operation_is_about_one_thing CHECK (num_nonnulls(instance_id, preflight_id) = 1)""",
    """CREATE TABLE app_usage (
           id text PRIMARY KEY,
           tenant_id text NOT NULL REFERENCES tenants,
           project_id text NOT NULL REFERENCES projects,
           instance_id text NOT NULL REFERENCES instances,
           app_slug text NOT NULL,
           record_id text NOT NULL,
           work_id text NOT NULL,
           subject text NOT NULL,
           quantity numeric(24, 6) NOT NULL,
           unit text NOT NULL,
           started_at timestamptz NOT NULL,
           ended_at timestamptz NOT NULL,
           labels jsonb NOT NULL,
           reported_by text NOT NULL,
           reported_at timestamptz NOT NULL DEFAULT now(),
           UNIQUE (instance_id, record_id)
       )""",
    "CREATE INDEX app_usage_of_project ON app_usage (project_id, id)",
    "ALTER TABLE instances ADD COLUMN access_credential_id text REFERENCES credentials",
    "ALTER TABLE members ADD COLUMN access_credential_id text REFERENCES credentials",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
