"""Inputs that people give, against the JSON Schema that the app declared."""

from typing import Any

import jsonschema

from gpuaas_contract.base import JsonObject
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.domain.errors import Refusal


def check_inputs(inputs: JsonObject, schema: JsonObject, pointer: str) -> JsonObject:
    """Validate, then fill in the defaults that the schema declares at its top level."""
    problems = [
        FieldError(pointer=pointer + "".join(f"/{part}" for part in error.absolute_path), detail=error.message)
        for error in jsonschema.Draft202012Validator(schema).iter_errors(inputs)
    ]
    if problems:
        raise Refusal(Code.INPUTS_INVALID, "; ".join(problem.detail for problem in problems), errors=problems)
    properties: dict[str, Any] = schema.get("properties", {})
    defaults = {key: value["default"] for key, value in properties.items() if "default" in value}
    return {**defaults, **inputs}
