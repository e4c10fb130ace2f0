"""Schema migrations, run by `gpuaas-platform migrate`, and at the start of an embedded platform."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError


class SchemaError(Exception):
    """The database cannot be used: it is older than the program, or does not let us in."""


def _config(database_url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("sqlalchemy.url", _sqlalchemy_url(database_url).replace("%", "%%"))
    return config


def _sqlalchemy_url(database_url: str) -> str:
    return database_url.replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise SchemaError(f"cannot reach the database: {error.orig}") from error


def migrate(database_url: str) -> None:
    with _reached():
        command.upgrade(_config(database_url), "head")


def require_current(database_url: str) -> None:
    """A database that is newer than the program is fine: an upgrade of several processes is under way."""
    script = ScriptDirectory.from_config(_config(database_url))
    known = {revision.revision for revision in script.walk_revisions()}
    with _reached(), create_engine(_sqlalchemy_url(database_url)).connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current is None or (current in known and current != script.get_current_head()):
        raise SchemaError(
            f"cannot serve: the database has schema {current or 'none'}, this program needs "
            f"{script.get_current_head()}; run `gpuaas-platform migrate` with this GPUAAS_DATABASE_URL first"
        )
