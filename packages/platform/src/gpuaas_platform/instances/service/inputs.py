"""Inputs that people give, against the JSON Schema that the app declared."""

from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_contract.json_schemas import find_value_problems
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.errors import Refusal


def find_problems(inputs: JsonObject, schema: JsonObject, pointer: str) -> list[FieldError]:
    return find_value_problems(inputs, schema, pointer)


def with_defaults(inputs: JsonObject, schema: JsonObject) -> JsonObject:
    """Add what the schema declares at its top level, where nothing was given."""
    properties: dict[str, Any] = schema.get("properties", {})
    defaults = {key: value["default"] for key, value in properties.items() if "default" in value}
    return {**defaults, **inputs}


def check_inputs(inputs: JsonObject, schema: JsonObject, pointer: str) -> JsonObject:
    if problems := find_problems(inputs, schema, pointer):
        raise Refusal(Code.INPUTS_INVALID, "; ".join(problem.detail for problem in problems), errors=problems)
    return with_defaults(inputs, schema)
