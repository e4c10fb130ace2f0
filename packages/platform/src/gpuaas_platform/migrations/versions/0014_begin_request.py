"""The beginning of a request with an idempotency key, in one round trip."""

from alembic import op

revision = "0014"
down_revision = "0013"

# Each statement inside of it sees what was committed before that statement, not before the call: an answer that was
# kept until just before the lock was free is found.
_FUNCTION = """
    CREATE FUNCTION begin_request(principal text, wanted text,
                                  OUT held boolean, OUT fingerprint text, OUT status int, OUT body text)
    LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        held := pg_try_advisory_xact_lock(hashtextextended(principal || '/' || wanted, 0));
        IF held THEN
            SELECT k.fingerprint, k.status, k.body INTO fingerprint, status, body
            FROM idempotency_keys k WHERE k.principal_id = principal AND k.key = wanted;
        END IF;
    END $$
"""


def upgrade() -> None:
    op.execute(_FUNCTION)
