"""Schema migrations, run by `gpuaas-platform migrate` and at the start of an embedded platform."""

from pathlib import Path

from alembic import command
from alembic.config import Config


def migrate(database_url: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option(
        "sqlalchemy.url", database_url.replace("postgresql://", "postgresql+psycopg://", 1).replace("%", "%%")
    )
    command.upgrade(config, "head")
