"""Every command that an error prints is one that there is."""

import pytest

from gpuaas_cli import errors
from gpuaas_cli.main import app
from gpuaas_contract.problems import AllowedAction

MEMBER_KINDS = ("drain", "resume", "recover", "remove", "replace", "forget", "rebalance")


def printed_commands() -> list[str]:
    member = [
        errors.member_command(AllowedAction(action=kind, title=kind), "ins_01", "mem_01") for kind in MEMBER_KINDS
    ]
    known = [*errors._COMMANDS.values(), *errors._PLAIN_COMMANDS.values()]
    shown = [f"gpuaas {noun} show x_01" for noun in errors._SHOWN.values()]
    listed = [f"gpuaas {noun} list" for noun in errors._LISTED.values()]
    return sorted(
        {command.format(id="op_01") for command in [*known, *shown, *listed, *member]} - {"run the command again"}
    )


@pytest.mark.parametrize("command", printed_commands())
def test_a_printed_command_can_be_parsed(command: str) -> None:
    first, *words = command.split()
    assert first == "gpuaas"
    app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    ("action", "href", "command"),
    [
        ("show", "/v1/app-instances/ins_01abc", "gpuaas instance show ins_01abc"),
        ("list", "/v1/allocations", "gpuaas allocation list"),
        ("list", "/v1/unheard-of", "GET /v1/unheard-of"),
        ("repeat", "/v1/allocations", "run the command again"),
        ("see_roles", "/v1/principal", "gpuaas whoami"),
    ],
)
def test_an_action_as_its_command(action: str, href: str, command: str) -> None:
    assert errors.next_command(AllowedAction(action=action, title="t", method="GET", href=href)) == command
