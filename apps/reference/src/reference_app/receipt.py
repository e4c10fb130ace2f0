"""The probe after a removal, and the receipt made of it. Each check is a command that prints what is left."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member
from gpuaas_sdk import Machine, MachineUnreachableError
from reference_app.software import CONFIG_DIR, PROGRAM_DIR, RECORD_DIR, STATE_DIR, USER, Role

NOTHING = "nothing"


def checks(going: Iterable[Role], staying: Iterable[Role], port: int) -> dict[str, str]:
    """For a machine that some roles leave, while others may stay on it."""
    gone, kept = list(going), set(staying)
    units = " ".join(role.unit for role in gone)
    found = {
        "units": f"for unit in {units}; do "
        '[ "$(systemctl show --property=LoadState --value "$unit")" = not-found ] || echo "$unit"; done',
        "configuration": f"ls {' '.join(f'{CONFIG_DIR}/{role}.json' for role in gone)} 2>/dev/null || true",
    }
    if Role.CONTROLLER in gone:
        found["port"] = f"ss -Hltn 'sport = :{port}'"
    if not kept:
        found |= {
            "processes": f"pgrep -u {USER} -l 2>/dev/null || true",
            "users": f"getent passwd {USER} || true; getent group {USER} || true",
            "paths": f"ls -d {PROGRAM_DIR}* {CONFIG_DIR} {STATE_DIR} {RECORD_DIR} 2>/dev/null || true",
        }
    return found


async def read_receipt(
    machine: Machine, going: Iterable[Role], staying: Iterable[Role], port: int
) -> list[dict[str, Any]]:
    """ok is None where it could not be found out: that is never taken for a yes."""
    seen = []
    for key, command in checks(going, staying, port).items():
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            result = await machine.read(command)
            found = result.stdout.strip()
            ok = not found if result.ok else None
            said = found or NOTHING if result.ok else f"unknown: exit status {result.exit_status}"
        except MachineUnreachableError as error:
            ok, said = None, f"unknown: {error}"
        seen.append({"check": key, "command": command, "expected": NOTHING, "found": said, "ok": ok, "at": at})
    return seen


def receipt_of(members: Iterable[Member], found: Mapping[str, list[dict[str, Any]]]) -> JsonObject:
    """One entry for each member; members that shared a machine share what was found on it."""
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
    return {"ok": all(entry["clean"] for entry in entries), "members": entries}
