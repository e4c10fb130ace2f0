"""Conditions of nodes: what their agents find wrong with the host, and for which they get no new machines."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.execute("ALTER TABLE nodes ADD COLUMN conditions jsonb NOT NULL DEFAULT '[]'")
