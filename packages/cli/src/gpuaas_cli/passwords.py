"""Passwords: from a prompt on a terminal, from standard input, or from the environment; never from a flag."""

import os
import sys

from gpuaas_cli.errors import USAGE, CliError


def read_password(prompt: str, variable: str, *, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if password := os.environ.get(variable):
        return password
    if not sys.stdin.isatty():
        raise CliError(f"no password: give it with --password-stdin or in {variable}", USAGE)
    import getpass

    return getpass.getpass(prompt)


def read_new_password(email: str, *, from_stdin: bool) -> str:
    variable = "GPUAAS_NEW_PASSWORD"
    password = read_password(f"New password of {email}: ", variable, from_stdin=from_stdin)
    asked = not from_stdin and not os.environ.get(variable)
    if asked and read_password("Once more: ", variable, from_stdin=False) != password:
        raise CliError("the two passwords differ", USAGE)
    return password
