"""preflight: find everything on the machines that would stand in the way, without changing anything."""

from collections.abc import Sequence

from gpuaas_contract.base import JsonObject
from gpuaas_contract.findings import Finding
from gpuaas_sdk import (
    CommandError,
    MachineUnreachableError,
    ObservedMachine,
    PreflightContext,
    ProtocolError,
    on_each,
)
from slurm_app.errors import SlurmAppError
from slurm_app.reconcilers.cluster import CONTROLLER, WORKER
from slurm_app.slurm import inspection
from slurm_app.slurm.inspection import Inspection
from slurm_app.slurm.overrides import checked_overrides
from slurm_app.slurm.roles import Role

_ROLES = {CONTROLLER: Role.CONTROLLER, WORKER: Role.WORKER}


async def check(context: PreflightContext) -> Sequence[Finding]:
    """Look at all machines at once; problems of the inputs are found beside those of the machines."""
    wanted = _wanted(context.preflight.request)
    chosen = [allocation_id for allocation_id in context.allocation_ids if allocation_id in wanted]
    seen = await _inspect(context, chosen)
    findings = list(_check_inputs(context.preflight.request.get("inputs") or {}))
    clocks: dict[str, float] = {}
    for allocation_id in chosen:
        pointer, roles = wanted[allocation_id]
        host, result = seen[allocation_id]
        if isinstance(result, str):
            findings.append(inspection.unreadable(host, result, pointer))
            continue
        findings += inspection.findings(host, result, roles, pointer)
        clocks[host] = result.facts.clock_skew_seconds
    return [*findings, *inspection.clock_findings(clocks)]


def _wanted(request: JsonObject) -> dict[str, tuple[str, frozenset[Role]]]:
    """Return, by allocation, where the request names it and for which roles."""
    found: dict[str, tuple[str, frozenset[Role]]] = {}

    def note(allocation_id: str, pointer: str, component: str) -> None:
        first, roles = found.get(allocation_id, (pointer, frozenset()))
        found[allocation_id] = (first, roles | {_ROLES[component]} if component in _ROLES else roles)

    for number, placement in enumerate(request.get("placement_intent") or []):
        note(placement["allocation_id"], f"/placement_intent/{number}", placement["component_key"])
    addition = request.get("add") or request
    for number, allocation_id in enumerate(addition.get("allocation_ids") or []):
        note(allocation_id, f"/allocation_ids/{number}", addition.get("component_key", WORKER))
    operation = request.get("operation") or request
    if replacement := (operation.get("input") or {}).get("allocation_id"):
        note(replacement, "/input/allocation_id", WORKER)
    return found


async def _inspect(context: PreflightContext, chosen: Sequence[str]) -> dict[str, tuple[str, Inspection | str]]:
    """Return, by allocation, the name of its machine, and its inspection or the reason why there is none."""
    seen: dict[str, tuple[str, Inspection | str]] = {}
    machines: list[ObservedMachine] = []
    for allocation_id in chosen:
        try:
            machines.append(context.machine(allocation_id))
        except MachineUnreachableError as error:
            if context.holds_up:
                raise
            seen[allocation_id] = allocation_id, str(error)

    async def inspect(machine: ObservedMachine) -> None:
        try:
            seen[machine.allocation_id] = machine.hostname, await inspection.inspect(machine)
        except (MachineUnreachableError, CommandError, ProtocolError) as error:
            if context.holds_up and isinstance(error, MachineUnreachableError):
                raise
            seen[machine.allocation_id] = machine.hostname, str(error)

    await on_each(machines, inspect)
    return seen


def _check_inputs(inputs: JsonObject) -> list[Finding]:
    try:
        checked_overrides(inputs.get("slurm_conf") or {})
    except SlurmAppError as error:
        action = "leave it out, or choose an allowed one"
        return [inspection.app_error(error.code, error.detail, "/inputs/slurm_conf", action)]
    return []
