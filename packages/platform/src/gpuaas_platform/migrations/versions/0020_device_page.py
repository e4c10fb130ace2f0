"""Where a device login was asked for, when it was used, and which password its approval stands on."""

from alembic import op

revision = "0020"
down_revision = "0019"

_STATEMENTS = [
    # A program from before these columns leaves them empty: its requests have no address, its approvals hold until
    # they are used.
    """ALTER TABLE device_authorizations
           ADD COLUMN address text NOT NULL DEFAULT '',
           ADD COLUMN user_epoch int,
           ADD COLUMN used_at timestamptz""",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
