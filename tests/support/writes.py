"""Which rows each transaction writes, told by triggers that only the tests install."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg

_SETUP = """
CREATE TABLE test_writes (
    transaction text NOT NULL, "table" text NOT NULL, event text NOT NULL, columns text[] NOT NULL,
    noun text, correlation_id text
);
CREATE FUNCTION test_note_write() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before jsonb := CASE WHEN TG_OP = 'INSERT' THEN '{}'::jsonb ELSE to_jsonb(OLD) END;
    after jsonb := CASE WHEN TG_OP = 'DELETE' THEN '{}'::jsonb ELSE to_jsonb(NEW) END;
BEGIN
    INSERT INTO test_writes
    SELECT pg_current_xact_id()::text, TG_TABLE_NAME, TG_OP,
           ARRAY(SELECT key FROM jsonb_object_keys(before || after) key
                 WHERE before -> key IS DISTINCT FROM after -> key),
           after ->> 'noun', after ->> 'correlation_id';
    RETURN NULL;
END $$;
"""


@dataclass
class Transaction:
    writes: list[tuple[str, str, frozenset[str]]] = field(default_factory=list)
    """Table, event, columns that differ."""
    nouns: set[str] = field(default_factory=set)
    """Of the changes that it wrote into the feed."""


class Writes:
    def __init__(self, connection: psycopg.Connection, tables: set[str]) -> None:
        self._connection = connection
        connection.execute(_SETUP.encode())
        for table in sorted(tables | {"changes"}):
            connection.execute(
                f"CREATE TRIGGER test_note_write AFTER INSERT OR UPDATE OR DELETE ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION test_note_write()".encode()
            )

    def transactions(self) -> Iterator[Transaction]:
        found: dict[str, Transaction] = defaultdict(Transaction)
        rows = self._connection.execute('SELECT transaction, "table", event, columns, noun FROM test_writes')
        for transaction, table, event, columns, noun in rows:
            if table == "changes":
                if event == "INSERT":
                    found[transaction].nouns.add(noun)
            else:
                found[transaction].writes.append((table, event, frozenset(columns)))
        yield from found.values()

    def changes_of(self, correlation_id: str) -> set[str]:
        rows = self._connection.execute("SELECT noun FROM changes WHERE correlation_id = %s", [correlation_id])
        return {noun for (noun,) in rows}


def tables(connection: psycopg.Connection) -> set[str]:
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {table for (table,) in rows}
