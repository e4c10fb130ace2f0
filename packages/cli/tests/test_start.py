"""The program starts quickly because it loads little; every command has help."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from cyclopts import App

from gpuaas_cli import commands as commands_package
from gpuaas_cli.commands import operation
from gpuaas_cli.main import COMMANDS, NOUNS, app, run
from gpuaas_contract.operations import OperationState

HEAVY = {"httpx", "pydantic", "asyncssh", "cryptography", "websockets", "yaml", "gpuaas_sdk.client"}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["instance", "deploy", "--help"]])
def test_nothing_heavy_is_loaded_to_show_help(arguments: list[str]) -> None:
    program = f"""
import sys
from gpuaas_cli.main import run
run({arguments!r})
print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def commands() -> list[list[str]]:
    found = [[name] for name in COMMANDS]
    for noun in NOUNS:
        group = app[noun]
        assert isinstance(group, App)
        found += [[noun, name] for name in group if not name.startswith("-")]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_and_the_choice_of_a_format(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--output" in out
    assert "Display this message" not in out.split("\n")[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["instance", "deploy"],
        ["allocation", "list", "-o", "xml"],
        ["operation", "list", "--state", "nonsense"],
    ],
)
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err


def test_operations_can_be_listed_by_each_of_their_states() -> None:
    assert set(get_args(operation.State)) == {state.value for state in OperationState}


def test_the_list_of_commands_says_what_each_is_for() -> None:
    """Run in a new process, which has loaded no command yet."""
    program = "from gpuaas_cli.main import run; run(['--help'])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for name in (*NOUNS, *COMMANDS):
        assert re.search(rf"│ {name} +[A-Z]", out), name


def test_every_file_of_a_noun_is_registered() -> None:
    files = {path.stem for path in Path(commands_package.__path__[0]).glob("*.py") if "= noun(" in path.read_text()}
    assert files == {noun.replace("-", "_") for noun in NOUNS}
