"""Each statement's answer fits the record that it is read into, by PostgreSQL's own description of it."""

import psycopg

from gpuaas_platform.migrations import migrate
from gpuaas_stack.settings import Settings
from tests.support.processes import fresh_database
from tests.support.statements import missing_columns, record_statements

MAY_BE_NULL = {
    "EnrolledNode.inventory may be NULL",  # only nodes that have one are read
    "SealedEntryRecord.position may be NULL",  # only sealed entries are read
    "UnsignedReceipt.position may be NULL",
}


def test_every_record_has_its_columns(servers: Settings) -> None:
    statements = list(record_statements())
    assert len(statements) > 200
    with fresh_database(servers) as url:
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            found = {line for statement in statements for line in missing_columns(connection, statement)}
    assert sorted(found - MAY_BE_NULL) == []
    assert sorted(MAY_BE_NULL - found) == [], "the list of exceptions only shrinks"
