"""The warm command line of the other tests does the same as the installed program."""

import re
import subprocess

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["whoami"], 0),
        (["tenant", "list", "-o", "json"], 0),
        (["allocation", "show"], 2),
        (["ssh", "nowhere", "--", "true"], 3),
        (["login", "--email", "nobody@example.com", "--password-stdin"], 4),
    ],
)
def test_it_does_what_the_installed_program_does(
    stack: Stack, cli: CommandLine, project: str, words: list[str], code: int
) -> None:
    warm, installed = (call(*words, stdin="no password of anybody") for call in (cli.call, cli.call_installed))
    assert installed.returncode == code, installed.stderr
    assert said(warm) == said(installed)


def said(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, re.sub(r"cor_\w+", "cor_…", done.stderr)
