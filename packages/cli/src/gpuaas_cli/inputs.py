"""Bodies and inputs of requests: from a file or standard input, with flags on top."""

import json
import sys
from pathlib import Path
from typing import Any

from gpuaas_cli.errors import USAGE, CliError


def read_document(file: str | None) -> dict[str, Any]:
    """Read an object from a JSON or YAML file; an empty one where no file is named."""
    if file is None:
        return {}
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    try:
        content = json.loads(text)
    except ValueError:
        content = _read_yaml(file, text)
    if not isinstance(content, dict):
        raise CliError(f"{file} is not a JSON or YAML object", USAGE, hint="gpuaas schema OPERATION")
    return content


def _read_yaml(file: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CliError(f"cannot read {file}: {error}", USAGE) from None


def merge(file: str | None, **flags: Any) -> dict[str, Any]:
    return {**read_document(file), **{name: value for name, value in flags.items() if value is not None}}


def split_pair(text: str, usage: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key or not value:
        raise CliError(f"cannot read {text!r}: expected {usage}", USAGE)
    return key, value


def read_inputs(given: list[str] | None, file: Path | None = None) -> dict[str, Any]:
    """Read KEY=VALUE words over the content of a file; values are YAML."""
    import yaml

    inputs: dict[str, Any] = read_document(str(file)) if file is not None else {}
    try:
        for text in given or []:
            key, value = split_pair(text, "--input KEY=VALUE")
            inputs[key] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise CliError(f"cannot read the inputs: {error}", USAGE) from None
    return inputs
