"""The operator of an instance: the one service account that works on it."""

from alembic import op

revision = "0024"
down_revision = "0023"

_STATEMENTS = (
    # No reference: a deleted account stays the operator, so that no other one takes the instance over unasked.
    "ALTER TABLE instances ADD COLUMN operator_account_id text",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
