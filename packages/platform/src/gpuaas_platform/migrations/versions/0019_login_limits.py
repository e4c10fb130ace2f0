"""Where audited requests come from, and what failed log-ins have cost so far."""

from alembic import op

revision = "0019"
down_revision = "0018"

_STATEMENTS = [
    # `form` says which fields an entry's hash covers. Whoever seals an entry sets it: a program from before these
    # columns leaves it at 1, and its seals stay good.
    """ALTER TABLE audit_entries
           ADD COLUMN address text NOT NULL DEFAULT '',
           ADD COLUMN user_agent text NOT NULL DEFAULT '',
           ADD COLUMN service text NOT NULL DEFAULT '',
           ADD COLUMN form smallint NOT NULL DEFAULT 1""",
    # Not logged: a row is worth minutes, and a crash that empties the table forgives whoever guessed before it.
    """CREATE UNLOGGED TABLE failed_attempts (
           key text PRIMARY KEY,
           failures integer NOT NULL,
           last_at timestamptz NOT NULL DEFAULT now()
       )""",
    "CREATE INDEX failed_attempts_by_age ON failed_attempts (last_at)",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
