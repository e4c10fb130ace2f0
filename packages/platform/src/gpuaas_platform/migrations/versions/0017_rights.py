"""The rights that an answer took, beside the answer: a repeated request is answered like a first one to those who have
lost them."""

from alembic import op

revision = "0017"
down_revision = "0016"

# A function of its own: programs of the version before go on with `begin_request`, whose result must not change.
_FUNCTION = """
    CREATE FUNCTION open_request(principal text, wanted text,
                                 OUT held boolean, OUT fingerprint text, OUT status int, OUT body text,
                                 OUT rights jsonb)
    LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        held := pg_try_advisory_xact_lock(hashtextextended(principal || '/' || wanted, 0));
        IF held THEN
            SELECT k.fingerprint, k.status, k.body, k.rights INTO fingerprint, status, body, rights
            FROM idempotency_keys k WHERE k.principal_id = principal AND k.key = wanted;
        END IF;
    END $$
"""


def upgrade() -> None:
    op.execute("ALTER TABLE idempotency_keys ADD COLUMN rights jsonb")
    op.execute(_FUNCTION)
