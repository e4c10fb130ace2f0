"""The versions of the schema that the program reads off its files are those that Alembic has."""

from alembic.script import ScriptDirectory

from gpuaas_platform.core.schema import known_versions
from gpuaas_platform.migrations import config


def test_the_numbers_of_the_files_are_the_versions_in_their_order() -> None:
    script = ScriptDirectory.from_config(config("postgresql://nowhere/none"))
    assert [revision.revision for revision in script.walk_revisions()] == known_versions()[::-1]
