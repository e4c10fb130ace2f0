"""Bodies of requests from a file or from standard input, with flags on top; and asking before something is lost."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from gpuaas_cli.errors import USAGE, CliError

Model = TypeVar("Model")
FromFile = Annotated[
    str | None,
    Parameter(
        name="--from-file",
        allow_leading_hyphen=True,
        help="The request as JSON or YAML, from a file or - for standard input; flags win over it.",
    ),
]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")]


def read_document(file: str | None) -> dict[str, Any]:
    """What is in the file; nothing where none is named."""
    if file is None:
        return {}
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    try:
        content = json.loads(text)
    except ValueError:
        content = _read_yaml(file, text)
    if not isinstance(content, dict):
        raise CliError(f"{file} does not hold an object", USAGE, hint="gpuaas schema shows what an operation takes")
    return content


def _read_yaml(file: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CliError(f"cannot read {file}: {error}", USAGE) from None


def merge(file: str | None, **flags: Any) -> dict[str, Any]:
    return {**read_document(file), **{name: value for name, value in flags.items() if value is not None}}


def confirm(question: str, answer: str, *, yes: bool) -> None:
    """Have the name of what would be lost typed. Without a terminal nobody is asked, and nothing is done."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError("nobody is there to ask whether you are sure", USAGE, hint="--yes")
    print(f"{question} Type {answer} to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != answer:
        raise CliError("nothing was done", USAGE)
