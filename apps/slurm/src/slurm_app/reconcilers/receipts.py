"""The receipt of a teardown, as the result of an operation."""

from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member


def receipt_of(members: list[Member], machines: list[dict[str, Any]]) -> JsonObject:
    """One entry for each member: members that shared a machine share what was found on it."""
    by_allocation = {machine["allocation_id"]: machine for machine in machines}
    return {
        "ok": all(machine["clean"] for machine in machines),
        "members": [
            {
                "member_id": member.id,
                "component_key": member.component_key,
                **by_allocation[member.allocation_id],
            }
            for member in members
        ],
    }
