"""Access to one port of a member, beside access to its machine."""

from alembic import op

revision = "0022"
down_revision = "0021"

_STATEMENTS = (
    "ALTER TABLE access_grants ADD COLUMN member_id text REFERENCES members (id)",
    # The name that the app's manifest gives the port.
    "ALTER TABLE access_grants ADD COLUMN port text",
    "CREATE INDEX access_grants_of_member ON access_grants (member_id) WHERE ended_at IS NULL",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
