"""Errors as people and programs see them: a sentence, a code, a correlation id, and what to do next."""

import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuaas_cli import output

if TYPE_CHECKING:
    from gpuaas_contract.problems import AllowedAction
    from gpuaas_sdk.errors import ApiError

FAILURE = 1
USAGE = 2
NOT_FOUND = 3
DENIED = 4
CONFLICT = 5
UNAVAILABLE = 6
WORK_FAILED = 7
WAITED_TOO_LONG = 8
UNTRUSTED_KEY = 9

_COMMANDS = {
    "retry": "gpuaas operation retry {id} --wait",
    "cancel": "gpuaas operation cancel {id}",
    "start": "gpuaas instance start {id} --wait",
    "stop": "gpuaas instance stop {id} --wait",
    "restart": "gpuaas instance restart {id} --wait",
    "upgrade": "gpuaas instance upgrade {id} VERSION --wait",
    "configure": "gpuaas instance configure {id} --input KEY=VALUE --wait",
    "add": "gpuaas member add {id} COMPONENT MACHINE --wait",
    "abandon": "gpuaas instance abandon {id} --reason WHY --yes",
    "watch": "gpuaas operation watch {id}",
    "decommission": "gpuaas instance decommission {id} --yes --wait",
    "release": "gpuaas allocation release {id} --yes --wait",
}
_PLAIN_COMMANDS = {
    "grant_entitlement": "gpuaas entitlement grant TENANT APP",
    "change_password": "gpuaas password",
    "log_out": "gpuaas logout",
    "relist": "run the command again",
    "repeat": "run the command again",
    "log_in": "gpuaas login",
    "see_roles": "gpuaas whoami",
    "list_nodes": "gpuaas node list",
    "list_machines": "gpuaas allocation list",
    "list_trusted_keys": "gpuaas trusted-key list",
    "list_apps": "gpuaas app list",
}
_SHOWN = {
    "allocations": "allocation",
    "app-instances": "instance",
    "artifacts": "artifact",
    "bulk-operations": "bulk-operation",
    "credentials": "credential",
    "grants": "grant",
    "nodes": "node",
    "operations": "operation",
    "projects": "project",
    "secrets": "secret",
    "service-accounts": "service-account",
    "volumes": "volume",
}
"""The nouns that have a `show`, by their collections."""
_LISTED = {
    "allocations": "allocation",
    "app-instances": "instance",
    "apps": "app",
    "artifacts": "artifact",
    "audit": "audit",
    "credentials": "credential",
    "entitlements": "entitlement",
    "memberships": "membership",
    "nodes": "node",
    "operations": "operation",
    "projects": "project",
    "service-accounts": "service-account",
    "tenants": "tenant",
    "trusted-keys": "trusted-key",
    "usage": "usage",
    "users": "user",
    "volumes": "volume",
}


class CliError(Exception):
    """An error of the command line itself, with its exit code."""

    def __init__(self, message: str, code: int = FAILURE, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def next_command(action: "AllowedAction") -> str:
    """Return the command for an allowed action, or its HTTP request where there is no command."""
    if looked := _look_command(action):
        return looked
    found = re.search(r"/([a-z]{2,4}_[0-9a-z]+)", action.href or "")
    template = _COMMANDS.get(action.action)
    if found and template:
        return template.format(id=found[1])
    if action.action in _PLAIN_COMMANDS:
        return _PLAIN_COMMANDS[action.action]
    return f"{action.method} {action.href}" if action.href else action.action


def _look_command(action: "AllowedAction") -> str | None:
    """Return the command that shows the object, or lists the collection, of an action's address."""
    _, _, collection, *rest = [*(action.href or "").split("/"), "", "", ""][:4]
    if action.action == "show" and collection in _SHOWN:
        return f"gpuaas {_SHOWN[collection]} show {rest[0]}"
    if action.action == "list" and collection in _LISTED:
        return f"gpuaas {_LISTED[collection]} list"
    return None


def member_command(action: "AllowedAction", instance: str, member: str) -> str:
    """Return the command for an allowed action of a member."""
    known = {"drain", "resume", "recover"}
    if action.action in known:
        return f"gpuaas member {action.action} {instance} {member} --wait"
    if action.action == "remove":
        return f"gpuaas member remove {instance} {member} --yes --wait"
    if action.action == "replace":
        return f"gpuaas member replace {instance} {member} MACHINE --wait"
    if action.action == "forget":
        return f"gpuaas member forget {instance} {member} --reason WHY --yes"
    return f"gpuaas member run {instance} {action.action} {member} --wait"


def report(error: Exception) -> int:
    """Report an error on stderr and return the exit code."""
    from pydantic import ValidationError

    from gpuaas_sdk.errors import ApiError, CertificateError, GpuaasError, TransportError
    from gpuaas_sdk.profile.errors import ProfileError, Wrong

    if isinstance(error, ApiError):
        return _report_problem(error)
    if isinstance(error, CliError):
        return _say(str(error), error.code, code=None, next_=error.hint)
    if isinstance(error, ProfileError):
        codes = {Wrong.USAGE: USAGE, Wrong.NOT_FOUND: NOT_FOUND, Wrong.NOT_LOGGED_IN: DENIED}
        return _say(str(error), codes[error.wrong], next_=error.hint)
    if isinstance(error, CertificateError):
        return _say(str(error), UNAVAILABLE, code="untrusted", next_="docs/how-to/tls.md has each case")
    if isinstance(error, TransportError):
        return _say(str(error), UNAVAILABLE, code="unreachable", next_="check the address: gpuaas context list")
    if isinstance(error, GpuaasError):
        return _say(str(error), FAILURE)
    if isinstance(error, ValidationError):
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return _say(f"invalid request: {wrong}", USAGE)
    if isinstance(error, OSError):
        return _say(f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error), FAILURE)
    if os.environ.get("GPUAAS_DEBUG"):
        traceback.print_exception(error)
    return _say(f"bug in this program: {type(error).__name__}: {error}", FAILURE, next_="run again with GPUAAS_DEBUG=1")


def report_usage(message: str, arguments: Sequence[str]) -> int:
    """Report arguments that could not be parsed; so the output format is looked for in them by hand."""
    if {"json", "-ojson", "--output=json"} & set(arguments):
        output.format = "json"
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))[:2]
    return _say(" ".join(message.split()), USAGE, code="usage", next_=" ".join(["gpuaas", *words, "--help"]))


def _report_problem(error: "ApiError") -> int:
    from gpuaas_sdk import errors as sdk

    code = FAILURE
    for kind, number in (
        (sdk.NotFoundError, NOT_FOUND),
        (sdk.ForbiddenError, DENIED),
        (sdk.UnauthenticatedError, DENIED),
        (sdk.ConflictError, CONFLICT),
        (sdk.UnavailableError, UNAVAILABLE),
        (sdk.InvalidRequestError, USAGE),
    ):
        if isinstance(error, kind):
            code = number
            break
    if output.format == "json":
        print(json.dumps(error.problem.model_dump(mode="json"), indent=2), file=sys.stderr)
        return code
    _line("error", error.detail, "red")
    for field in error.errors:
        _line(f"  {field.pointer}", field.detail)
    _line("code", str(error.code))
    _line("correlation id", error.correlation_id)
    for action in error.allowed_actions:
        _line("next", f"{action.title}: {next_command(action)}")
    if isinstance(error, sdk.UnauthenticatedError) and "log_in" not in {a.action for a in error.allowed_actions}:
        _line("next", "gpuaas login")
    return code


def _say(message: str, exit_code: int, *, code: str | None = None, next_: str | None = None) -> int:
    if output.format == "json":
        said = {"detail": message, "code": code, "next": next_, "exit_code": exit_code}
        print(json.dumps({k: v for k, v in said.items() if v is not None}, indent=2), file=sys.stderr)
        return exit_code
    _line("error", message, "red")
    if next_ is not None:
        _line("next", next_)
    return exit_code


def _line(label: str, value: str, colour: str | None = None) -> None:
    print(f"{output.style(label + ':', colour, sys.stderr)} {output.clean(value)}", file=sys.stderr)
