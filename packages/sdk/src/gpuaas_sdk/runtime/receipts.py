"""Teardown receipts: what was looked at on each machine after a removal, and what was found there."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member
from gpuaas_sdk.machines.base import Machine, MachineUnreachableError

NOTHING = "nothing"
_FOUND_LIMIT = 2_000


async def probe(machine: Machine, checks: Mapping[str, str]) -> list[dict[str, Any]]:
    """Each check is a command that prints what is left. `ok` is None where that could not be found out, which is never
    taken for a yes."""
    seen = []
    for check, command in checks.items():
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            result = await machine.read(command)
        except MachineUnreachableError as error:
            ok, found = None, f"unknown: {error}"
        else:
            left = result.stdout.strip()[:_FOUND_LIMIT]
            ok = not left if result.ok else None
            found = (left or NOTHING) if result.ok else f"unknown: exit status {result.exit_status}"
        seen.append({"check": check, "command": command, "expected": NOTHING, "found": found, "ok": ok, "at": at})
    return seen


def receipt_of(members: Iterable[Member], found: Mapping[str, list[dict[str, Any]]]) -> JsonObject:
    """One entry for each member; members that shared a machine share what was found on it. Hand it over as
    `{"receipt": …}`, the result of the operation that removed them."""
    entries = [
        {
            "member_id": member.id,
            "component_key": member.component_key,
            "allocation_id": member.allocation_id,
            "clean": all(check["ok"] is True for check in found[member.allocation_id]),
            "checks": found[member.allocation_id],
        }
        for member in members
    ]
    return {"ok": bool(entries) and all(entry["clean"] for entry in entries), "members": entries}
