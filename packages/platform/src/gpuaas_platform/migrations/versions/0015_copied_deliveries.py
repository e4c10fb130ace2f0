"""Deliveries without a task: to machines that have no agent, the holder of the lease brings the file."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.execute("ALTER TABLE deliveries ALTER COLUMN task_id DROP NOT NULL")
