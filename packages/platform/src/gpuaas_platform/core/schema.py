"""Which schema the database has, and whether this program can serve with it. Changing it is `migrations`."""

from pathlib import Path

import psycopg

VERSIONS = Path(__file__).parent.parent / "migrations" / "versions"


class SchemaError(Exception):
    """The database cannot be used: it is older than the program, or does not let us in."""


def known_versions() -> list[str]:
    """The migrations of this program, oldest first: the number that begins each file's name is its version."""
    return sorted(path.name.partition("_")[0] for path in VERSIONS.glob("[0-9]*_*.py"))


def read_version(database_url: str) -> str | None:
    """The version that the database has; None for an empty one."""
    try:
        with psycopg.connect(database_url) as connection:
            if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
                return None
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except psycopg.OperationalError as error:
        raise SchemaError(f"cannot reach the database: {error}") from error
    return str(row[0]) if row else None


def is_current(database_url: str) -> bool:
    return _is_current(read_version(database_url))


def _is_current(version: str | None) -> bool:
    """A database that is newer than the program is fine: an upgrade of several processes is under way."""
    *older, _ = known_versions()
    return version is not None and version not in older


def require_current(database_url: str) -> None:
    version = read_version(database_url)
    if not _is_current(version):
        raise SchemaError(
            f"cannot serve: the database has schema {version or 'none'}, this program needs "
            f"{known_versions()[-1]}; run `gpuaas-platform migrate` with this GPUAAS_DATABASE_URL first"
        )
