"""Questions on a terminal: confirmations, passwords, and the inputs of an app by its JSON Schema."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.output import clean

if TYPE_CHECKING:
    from gpuaas_contract.manifest import Hints

NOTHING = object()


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, answer: str, *, yes: bool) -> None:
    """Ask the person to type the name of what would be lost. Without a terminal, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError("cannot ask for confirmation: this is not a terminal", USAGE, hint="--yes")
    print(f"{question} Type {answer} to confirm: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != answer:
        raise CliError("not confirmed; nothing was changed", USAGE)


def read_password(prompt: str, variable: str, *, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if password := os.environ.get(variable):
        return password
    if not sys.stdin.isatty():
        raise CliError(f"no password given: use --password-stdin or {variable}", USAGE)
    import getpass

    return getpass.getpass(prompt)


def read_new_password(email: str, *, from_stdin: bool) -> str:
    variable = "GPUAAS_NEW_PASSWORD"
    password = read_password(f"New password of {email}: ", variable, from_stdin=from_stdin)
    asked = not from_stdin and not os.environ.get(variable)
    if asked and read_password("Repeat the new password: ", variable, from_stdin=False) != password:
        raise CliError("the two passwords differ", USAGE)
    return password


def ask(question: str, check: Callable[[str], str | None], *, default: str = "", help: str = "") -> str:
    """Ask until the answer is valid; `check` returns what is wrong with it."""
    if help:
        print(f"  {clean(help)}", file=sys.stderr)
    shown = f" [{default}]" if default else ""
    while True:
        print(f"{clean(question)}{shown}: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise CliError("the input ended before all questions were answered", USAGE, hint="--input KEY=VALUE")
        answer = line.strip() or default
        wrong = check(answer)
        if wrong is None:
            return answer
        print(f"  {clean(wrong)}", file=sys.stderr)


def ask_inputs(schema: Mapping[str, Any], hints: "Mapping[str, Hints]", given: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for the schema's values that were not given; optional ones may be left empty."""
    properties: dict[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    order = {key: hints[key].order if key in hints else 0 for key in properties}
    answers: dict[str, Any] = {}
    for key in sorted(properties, key=lambda key: order[key]):
        if key in given:
            continue
        part = properties[key] if isinstance(properties[key], dict) else {}
        value = _ask_one(key, part, hints.get(key), key in required, schema.get("$defs", {}))
        if value is not NOTHING:
            answers[key] = value
    return answers


def _ask_one(key: str, part: Mapping[str, Any], hints: "Hints | None", required: bool, defs: Any) -> Any:
    from gpuaas_contract.json_schemas import find_value_problems

    label = (hints.label if hints is not None else None) or part.get("title") or key
    help = (hints.help if hints is not None else "") or str(part.get("description", ""))
    if "enum" in part:
        help = f"{help} One of {', '.join(map(_text, part['enum']))}.".strip()
    own = {"$defs": defs, **part}

    def check(answer: str) -> str | None:
        if not answer:
            return "a value is required" if required else None
        problems = find_value_problems(_value(answer, part), own)
        return "; ".join(problem.detail for problem in problems) or None

    default = _text(part["default"]) if "default" in part else ""
    answer = ask(str(label) + ("" if required else " (optional)"), check, default=default, help=help)
    return _value(answer, part) if answer else NOTHING


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _value(answer: str, part: Mapping[str, Any]) -> Any:
    """Keep the answer as text where the schema says string; read it as YAML otherwise."""
    if part.get("type") == "string":
        return answer
    import yaml

    try:
        return yaml.safe_load(answer)
    except yaml.YAMLError:
        return answer
