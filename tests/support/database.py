"""The test platform's database, looked at from behind."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from gpuaas_stack.postgres import BIN_DIR, Postgres
from gpuaas_stack.settings import Settings


def postgres_of(settings: Settings) -> Postgres:
    return Postgres(settings.state_dir / "postgres", settings.postgres_port)


def database_url(settings: Settings) -> str:
    """The test's own database where it has one, else the one that the stack made."""
    own = settings.database_url
    return postgres_of(settings).database_url() if own is None else own.get_secret_value()


@contextmanager
def connect(settings: Settings) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url(settings), autocommit=True) as connection:
        yield connection


def dump(settings: Settings) -> str:
    command = [str(BIN_DIR / "pg_dump"), "--inserts", database_url(settings)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def audited(settings: Settings, action: str, principal_id: str, outcome: str = "succeeded") -> list[str]:
    """The correlation ids of what somebody did, or tried."""
    with connect(settings) as connection:
        rows = connection.execute(
            """SELECT correlation_id FROM audit_entries
               WHERE action = %s AND principal_id = %s AND outcome = %s ORDER BY id""",
            (action, principal_id, outcome),
        ).fetchall()
    return [row[0] for row in rows]
