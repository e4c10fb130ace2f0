"""Schema migrations, run by `gpuaas-platform migrate`, and at the start of an embedded platform."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy.exc import OperationalError

from gpuaas_platform.core.schema import SchemaError


def config(database_url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    url = database_url.replace("postgresql://", "postgresql+psycopg://", 1)
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def migrate(database_url: str) -> None:
    try:
        command.upgrade(config(database_url), "head")
    except OperationalError as error:
        raise SchemaError(f"cannot reach the database: {error.orig}") from error
