"""Starting is quick, because little is loaded; and every command explains itself."""

import subprocess
import sys

import pytest
from cyclopts import App

from gpuaas_cli.main import NOUNS, app, run

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
    found = [["login"], ["logout"], ["whoami"], ["ssh"], ["ssh-config"]]
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


@pytest.mark.parametrize("arguments", [["nonsense"], ["instance", "deploy"], ["allocation", "list", "-o", "xml"]])
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err
