"""Inputs that people give, against the JSON Schema that the app declared."""

from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_contract.problems import Code
from gpuaas_platform.core.checks import Check, Verdict
from gpuaas_platform.core.database import Transaction


def check_of(tenant_id: str, inputs: JsonObject, schema: JsonObject, pointer: str) -> Check:
    return Check(owner=f"tenants/{tenant_id}", document=inputs, schema=schema, pointer=pointer)


def with_defaults(inputs: JsonObject, schema: JsonObject) -> JsonObject:
    """Add what the schema declares at its top level, where nothing was given."""
    properties: dict[str, Any] = schema.get("properties", {})
    defaults = {key: value["default"] for key, value in properties.items() if "default" in value}
    return {**defaults, **inputs}


def refuse_problems(verdict: Verdict, about: str = "") -> None:
    if verdict.problems:
        detail = about + "; ".join(problem.detail for problem in verdict.problems)
        raise verdict.refusal(Code.INPUTS_INVALID, detail, verdict.problems)


def check_inputs(tx: Transaction, tenant_id: str, inputs: JsonObject, schema: JsonObject, pointer: str) -> JsonObject:
    refuse_problems(tx.verdict(check_of(tenant_id, inputs, schema, pointer)))
    return with_defaults(inputs, schema)
