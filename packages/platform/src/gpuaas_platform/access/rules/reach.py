"""Which machines access under a lease reaches, and why not the others."""

from collections.abc import Sequence

from gpuaas_contract.access import MachineLeftOut
from gpuaas_contract.allocations import AllocationStatus, ShapeKind
from gpuaas_platform.allocations.records import AllocationView

Reach = tuple[list[AllocationView], list[MachineLeftOut]]
_NO_OBSERVER = (
    "{} is an external machine and has no observer, since its stored key allows more than reading; only an operation "
    "that may change it gets there"
)


def reach_active(machines: Sequence[AllocationView]) -> Reach:
    """Split off the machines that nobody can reach now."""
    return _split(machines, {row.id: f"{row.name} is {row.status}, not active" for row in machines if not _up(row)})


def reach_observable(machines: Sequence[AllocationView]) -> Reach:
    """Split off those without an observer as well."""
    there, left_out = reach_active(machines)
    external = {row.id: _NO_OBSERVER.format(row.name) for row in there if row.shape.kind == ShapeKind.EXTERNAL}
    observable, unobserved = _split(there, external)
    return observable, left_out + unobserved


def _up(row: AllocationView) -> bool:
    return row.status == AllocationStatus.ACTIVE


def _split(machines: Sequence[AllocationView], reasons: dict[str, str]) -> Reach:
    left_out = [MachineLeftOut(allocation_id=allocation_id, reason=reason) for allocation_id, reason in reasons.items()]
    return [row for row in machines if row.id not in reasons], left_out
