"""The preflight that the operations of a deploy wait for."""

from alembic import op

revision = "0025"
down_revision = "0024"

_STATEMENTS = ("ALTER TABLE operations ADD COLUMN gate_preflight_id text REFERENCES preflights (id)",)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
