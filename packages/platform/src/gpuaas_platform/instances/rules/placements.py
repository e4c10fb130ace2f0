"""Whether machines suit the components that are to be placed on them. All that is wrong, not the first of it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.findings import Finding, Severity
from gpuaas_contract.instances import Placement
from gpuaas_contract.manifest import Component, Manifest, Mode
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.instances.records import MachineUser


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines that a request names, and who uses them."""

    found: Mapping[str, AllocationRecord]
    """Allocations of the owner, by id. One that is somebody else's is not there."""
    live: Sequence[MachineUser]
    """Members that use them already."""
    instance_id: str | None = None
    """The instance that is to have more members: its own ones share their machines where their components may."""

    def own_on(self, allocation_id: str) -> set[str]:
        """The components that the instance has there."""
        return set(self.own_members_on(allocation_id))

    def own_members_on(self, allocation_id: str) -> list[str]:
        """The component of each member that the instance has there."""
        return [
            member.component_key
            for member in self.live
            if member.allocation_id == allocation_id and member.instance_id == self.instance_id
        ]


def problem(code: str, message: str, pointer: str, action: str = "") -> Finding:
    return Finding(severity=Severity.ERROR, code=code, message=message, pointer=pointer, action=action)


def check_placements(
    placements: Sequence[Placement], manifest: Manifest, machines: Machines, pointer: str
) -> Iterator[Finding]:
    for number, placement in enumerate(placements):
        yield from _check_one(placement, placements, manifest, machines, f"{pointer}/{number}")


def check_counts(counts: Mapping[str, int], manifest: Manifest, pointer: str) -> Iterator[Finding]:
    """How many members each component would have."""
    for component in manifest.components:
        count = counts.get(component.key, 0)
        if not component.min <= count <= component.max:
            message = f"{component.key}: {count} placed, between {component.min} and {component.max} needed"
            yield problem("count_out_of_range", message, pointer, f"place as many as {component.title} needs")


def _check_one(
    placement: Placement, placements: Sequence[Placement], manifest: Manifest, machines: Machines, pointer: str
) -> Iterator[Finding]:
    component = manifest.component(placement.component_key)
    if component is None:
        known = ", ".join(component.key for component in manifest.components)
        message = f"{manifest.slug} has no component {placement.component_key!r}"
        yield problem("component_unknown", message, pointer, f"choose one of {known}")
    row = machines.found.get(placement.allocation_id)
    if row is None:
        message = f"the project has no allocation {placement.allocation_id!r}"
        yield problem("allocation_unknown", message, pointer, "choose one of the project's own allocations")
        return
    if row.status != AllocationStatus.ACTIVE:
        message = f"allocation {row.name} is {row.status}, not active"
        yield problem("allocation_not_active", message, pointer, "wait until it is active, or choose another")
    for member in machines.live:
        if member.allocation_id == placement.allocation_id and member.instance_id != machines.instance_id:
            message = f"allocation {row.name} is used by {member.instance_name} already"
            yield problem("allocation_in_use", message, pointer, "choose one that is free")
            break
    if component is not None:
        own = machines.own_on(placement.allocation_id)
        yield from _check_sharing(placement, placements, component, row, own, manifest, pointer)
        yield from check_size(component, row, pointer)
        yield from _check_size_together(placement, placements, manifest, machines, row, pointer)


def _check_size_together(
    placement: Placement,
    placements: Sequence[Placement],
    manifest: Manifest,
    machines: Machines,
    row: AllocationRecord,
    pointer: str,
) -> Iterator[Finding]:
    """Check once for each machine whether it has memory and GPUs for all that share it; CPUs are taken in turns.

    Where one of them alone is too large, that is said already."""
    here = [other for other in placements if other.allocation_id == placement.allocation_id]
    if here[0] is not placement:
        return
    keys = [other.component_key for other in here] + machines.own_members_on(placement.allocation_id)
    sharing = [component for key in keys if (component := manifest.component(key)) is not None]
    if len(sharing) < 2:
        return
    needs = [component.requires_capacity_shape for component in sharing]
    names = " and ".join(sorted({component.key for component in sharing}))
    memory, gpus = sum(need.memory_mib for need in needs), sum(need.gpus for need in needs)
    if max(need.memory_mib for need in needs) <= row.shape.memory_mib < memory:
        message = (
            f"allocation {row.name} is too small for {names} together: it has {row.shape.memory_mib} MiB, "
            f"{memory} MiB needed"
        )
        yield problem("shape_too_small", message, pointer, "resize it, choose a larger one, or place them apart")
    if max(need.gpus for need in needs) <= row.shape.gpus < gpus:
        message = f"allocation {row.name} has {row.shape.gpus} GPUs, {names} together need {gpus}"
        yield problem("too_few_gpus", message, pointer, "choose one with more GPUs, or place them apart")


def _check_sharing(
    placement: Placement,
    placements: Sequence[Placement],
    component: Component,
    row: AllocationRecord,
    own: set[str],
    manifest: Manifest,
    pointer: str,
) -> Iterator[Finding]:
    sharing = [
        other for other in placements if other is not placement and other.allocation_id == placement.allocation_id
    ]
    present = {other.component_key for other in sharing} | own
    if missing := [key for key in component.must_share_machine_with if key not in present]:
        message = f"{component.key} must be placed on the same allocation as {', '.join(missing)}"
        yield problem("must_share_machine", message, pointer, f"place {', '.join(missing)} on {row.name}, too")
    reluctant = {
        key for key in own if (other := manifest.component(key)) and component.key not in other.may_share_machine_with
    }
    for key in sorted((present - set(component.may_share_machine_with)) | reluctant):
        message = f"{component.key} may not share allocation {row.name} with {key}"
        yield problem("may_not_share_machine", message, pointer, "place each on an allocation of its own")


def check_size(component: Component, row: AllocationRecord, pointer: str) -> Iterator[Finding]:
    shape, needs = row.shape, component.requires_capacity_shape
    if shape.cpus < needs.cpus or shape.memory_mib < needs.memory_mib:
        message = (
            f"allocation {row.name} is too small for {component.key}: it has {shape.cpus} CPUs and "
            f"{shape.memory_mib} MiB, {needs.cpus} CPUs and {needs.memory_mib} MiB needed"
        )
        yield problem("shape_too_small", message, pointer, "resize it, or choose a larger one")
    if shape.gpus < needs.gpus:
        message = f"allocation {row.name} has {shape.gpus} GPUs, {component.key} needs {needs.gpus}"
        yield problem("too_few_gpus", message, pointer, "choose one with more GPUs")


def mode_problem(mode: Mode, counts: Mapping[str, int], machines: int) -> str | None:
    """Why an instance of that many members on that many machines is not of the mode."""
    for limit in mode.limits:
        count = counts.get(limit.component, 0)
        if not limit.min <= count <= limit.max:
            return f"{mode.key} has {limit.min} to {limit.max} of {limit.component}, not {count}"
    if mode.max_machines is not None and machines > mode.max_machines:
        return f"{mode.key} is for at most {mode.max_machines} machines, not {machines}"
    return None


def choose_mode(
    manifest: Manifest, wanted: str | None, placements: Sequence[Placement]
) -> tuple[str | None, Finding | None]:
    """The mode that was asked for, else the app's default where the placement fits it, else the first that it fits."""
    counts = Counter(placement.component_key for placement in placements)
    machines = len({placement.allocation_id for placement in placements})
    if wanted is not None:
        mode = manifest.mode(wanted)
        known = ", ".join(mode.key for mode in manifest.modes) or "none"
        if mode is None:
            message = f"{manifest.slug} has no mode {wanted!r}; it has: {known}"
            return None, problem("mode_unknown", message, "/mode", "choose one that it has")
        message = mode_problem(mode, counts, machines) or ""
        return wanted, problem("mode_does_not_fit", message, "/mode", "choose another mode") if message else None
    reasons = []
    # The default first, the others in their order.
    for mode in sorted(manifest.modes, key=lambda mode: mode.key != manifest.default_mode):
        if (reason := mode_problem(mode, counts, machines)) is None:
            return mode.key, None
        reasons.append(reason)
    if not reasons:
        return None, None
    message = f"the placement fits no mode of {manifest.slug}: {'; '.join(reasons)}"
    return None, problem("mode_does_not_fit", message, "/placement_intent", "place as one of the modes needs it")
