"""Before a deploy or an addition: whether the machines are free of another instance. Looks, and changes nothing."""

from gpuaas_contract.findings import Finding, Severity
from gpuaas_sdk import PreflightContext

from reference_app.software import CONFIG_DIR, PROGRAM_DIR, STATE_DIR, USER, Role

_PATHS = (PROGRAM_DIR, CONFIG_DIR, STATE_DIR, *(role.unit_path for role in Role))
_LOOK = f"""
for path in {" ".join(_PATHS)}; do if [ -e "$path" ]; then echo "$path"; fi; done
if getent passwd {USER} >/dev/null; then echo "the user {USER}"; fi
"""


async def look(context: PreflightContext) -> list[Finding]:
    if context.preflight.kind not in {"deploy", "add"}:
        return []  # The members that are there have what we brought.
    # An addition names its machines; the controller's own may be looked at as well, and has what we brought.
    named = context.preflight.request.get("allocation_ids", context.allocation_ids)
    findings = []
    for allocation_id in sorted({*named} & {*context.allocation_ids}):
        machine = context.machine(allocation_id)
        seen = await machine.read(_LOOK)
        if left := ", ".join(seen.stdout.split("\n")).strip(", "):
            findings.append(
                Finding(
                    severity=Severity.ERROR,
                    code="leftovers",
                    message=f"{machine.hostname} has {left} already",
                    action="remove it, or choose a machine that is clean",
                )
            )
    return findings
