"""docs/reference/commands.md is written from the help of the commands."""

import os
import re
import sys
from pathlib import Path

import pytest

from gpuaas_cli.main import app

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "commands.md"


def test_the_committed_page_is_the_help_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    # Usage lines are made from it.
    monkeypatch.setattr(sys, "argv", ["gpuaas"])
    app.resolved_commands()
    # Every command has the global options: cli.md tells them once.
    generated = re.sub(r"\*\*Global options\*\*:\n\n(\* .*\n)+\n?", "", app.generate_docs()).rstrip() + "\n"
    if os.environ.get("GPUAAS_WRITE_REFERENCE"):
        REFERENCE.write_text(generated)
    assert REFERENCE.read_text() == generated, "run `make reference`, look at the difference, commit it"
