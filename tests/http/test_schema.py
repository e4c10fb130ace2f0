"""The committed schema is what the migrations make, so that the tables can be read in one place."""

import os
from pathlib import Path

from gpuaas_platform.migrations import migrate
from gpuaas_stack.settings import Settings
from tests.support.processes import fresh_database
from tests.support.schema_text import describe_schema

REFERENCE = Path(__file__).parents[2] / "docs/reference/schema.sql"


def test_the_committed_schema_is_what_the_migrations_make(servers: Settings) -> None:
    with fresh_database(servers) as url:
        migrate(url)
        made = describe_schema(url)
        if os.environ.get("GPUAAS_WRITE_REFERENCE"):
            REFERENCE.write_text(made)
        assert REFERENCE.read_text() == made, "run `make reference`, look at the difference, commit it"
