"""Rights that end on the machine itself: principals of leases, listening for people, host certificates for days. And
what a node's operator has to know of its agent's links."""

from alembic import op

revision = "0018"
down_revision = "0017"

_STATEMENTS = (
    """CREATE TABLE lease_principals (
           allocation_id text NOT NULL REFERENCES allocations (id),
           principal text NOT NULL,
           login text NOT NULL,
           account_id text NOT NULL,
           operation_id text REFERENCES operations (id),
           reconciled_instance_id text REFERENCES instances (id),
           told_at timestamptz,
           created_at timestamptz NOT NULL DEFAULT now(),
           PRIMARY KEY (allocation_id, principal)
       )""",
    "CREATE INDEX lease_principals_of_principal ON lease_principals (principal)",
    "CREATE INDEX lease_principals_of_operation ON lease_principals (operation_id)",
    "CREATE INDEX lease_principals_of_reconcile ON lease_principals (reconciled_instance_id)",
    "ALTER TABLE grants ADD COLUMN remote_forwarding boolean NOT NULL DEFAULT false",
    "ALTER TABLE allocations ADD COLUMN host_certificate_expires_at timestamptz",
    # Now, for all that there are: theirs are good for years.
    "ALTER TABLE allocations ADD COLUMN host_certificate_due_at timestamptz NOT NULL DEFAULT now()",
    """CREATE INDEX allocations_host_certificate_due ON allocations (host_certificate_due_at)
       WHERE status = 'active'""",
    "ALTER TABLE nodes ADD COLUMN link_replaced_at timestamptz",
    "ALTER TABLE nodes ADD COLUMN link_address text NOT NULL DEFAULT ''",
    "ALTER TABLE nodes ADD COLUMN inventory_refused text NOT NULL DEFAULT ''",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
