"""preflight: everything that would stand in the way on the machines, found by looking alone."""

import asyncio
from collections.abc import Sequence

from gpuaas_contract.base import JsonObject
from gpuaas_contract.findings import Finding
from gpuaas_sdk import MachineUnreachableError, PreflightContext
from slurm_app.errors import SlurmAppError
from slurm_app.reconcilers.cluster import CONTROLLER, WORKER
from slurm_app.slurm import look
from slurm_app.slurm.overrides import checked_overrides
from slurm_app.slurm.roles import Role

_ROLES = {CONTROLLER: Role.CONTROLLER, WORKER: Role.WORKER}


async def check(context: PreflightContext) -> Sequence[Finding]:
    """Machines at once; what is wrong with the inputs is said beside what is wrong with the machines."""
    wanted = _wanted(context.preflight.request)
    machines = [allocation_id for allocation_id in context.allocation_ids if allocation_id in wanted]
    seen = await asyncio.gather(*(_look_at(context, allocation_id) for allocation_id in machines))
    findings = list(_check_inputs(context.preflight.request.get("inputs") or {}))
    clocks: dict[str, int] = {}
    for allocation_id, (host, result) in zip(machines, seen, strict=True):
        pointer, roles = wanted[allocation_id]
        if isinstance(result, str):
            findings.append(look.unreadable(host, result, pointer))
            continue
        findings += look.judge(host, result, roles, pointer)
        clocks[host] = result.facts.clock
    return [*findings, *look.judge_clocks(clocks)]


def _wanted(request: JsonObject) -> dict[str, tuple[str, frozenset[Role]]]:
    """By allocation: where the request names it, and for which roles."""
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


async def _look_at(context: PreflightContext, allocation_id: str) -> tuple[str, look.Look | str]:
    try:
        machine = context.machine(allocation_id)
        return machine.hostname, await look.read_look(machine)
    except (MachineUnreachableError, SlurmAppError) as error:
        return allocation_id, str(error)


def _check_inputs(inputs: JsonObject) -> list[Finding]:
    try:
        checked_overrides(inputs.get("slurm_conf") or {})
    except SlurmAppError as error:
        return [
            look.app_error(error.code, error.detail, "/inputs/slurm_conf", "leave it out, or choose an allowed one")
        ]
    return []
