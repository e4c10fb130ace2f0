"""The preflight that the operations of a deploy wait for."""

from alembic import op

revision = "0026"
down_revision = "0025"

_STATEMENTS = ("ALTER TABLE operations ADD COLUMN gate_preflight_id text REFERENCES preflights (id)",)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
