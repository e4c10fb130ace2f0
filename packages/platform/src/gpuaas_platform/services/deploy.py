"""Deploying an app: instance, members and operations in one transaction."""

from gpuaas_contract import ids
from gpuaas_contract.allocations import AllocationStatus, Shape
from gpuaas_contract.instances import Instance, InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import Caller, Permission
from gpuaas_platform.services import operations
from gpuaas_platform.services.catalogue import get_version, manifest_of
from gpuaas_platform.services.identity import require_project
from gpuaas_platform.services.inputs import check_inputs
from gpuaas_platform.services.instances import reread, to_model
from gpuaas_platform.storage import allocations as allocation_store
from gpuaas_platform.storage import instances as store
from gpuaas_platform.storage.database import Row, Transaction


async def deploy_instance(tx: Transaction, caller: Caller, body: InstanceDeploy) -> Instance:
    """Instance, members and operations appear together or not at all."""
    await require_project(tx, caller, body.project_id, Permission.INSTANCE_DEPLOY)
    version = await get_version(tx, body.app_slug, body.version)
    manifest = manifest_of(version)
    inputs = check_inputs(body.inputs, manifest.inputs, "/inputs")
    allocations = await _check_placement(tx, body, manifest)
    row = await store.insert(
        tx,
        ids.new_id(ids.INSTANCE),
        body.project_id,
        manifest.slug,
        version["id"],
        body.name,
        inputs,
        [placement.model_dump() for placement in body.placement_intent],
    )
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"the project has an app instance named {body.name!r} already")
    await tx.audit("app_instance.deploy", row["id"], project_id=body.project_id)
    await tx.changed("instance", row, "created", project_id=row["project_id"], instance_id=row["id"])
    # The primary member first: its operation is the deploy, the others join it.
    ordered = sorted(body.placement_intent, key=lambda placement: placement.component_key != manifest.primary.key)
    for placement in ordered:
        node_id = allocations[placement.allocation_id]["node_id"]
        member = await store.insert_member(
            tx, ids.new_id(ids.MEMBER), row["id"], placement.component_key, placement.allocation_id, node_id
        )
        await tx.changed("member", member, "created", project_id=row["project_id"], instance_id=row["id"])
        kind = "deploy" if placement.component_key == manifest.primary.key else "add"
        await operations.create(tx, row, manifest, kind, member["id"], {})
    return to_model(await reread(tx, row["id"]))


async def _check_placement(tx: Transaction, body: InstanceDeploy, manifest: Manifest) -> dict[str, Row]:
    """Find everything that is wrong with the placement at once. Allocations are locked on the way."""
    found: dict[str, Row] = {}
    problems: list[FieldError] = []
    for allocation_id in sorted({placement.allocation_id for placement in body.placement_intent}):
        row = await allocation_store.lock(tx, allocation_id)
        if row is not None and row["project_id"] == body.project_id:
            found[allocation_id] = row
    live = await store.list_live_on(tx, list(found))
    for number, placement in enumerate(body.placement_intent):
        detail = _placement_problem(placement, body.placement_intent, manifest, found, live)
        if detail:
            problems.append(FieldError(pointer=f"/placement_intent/{number}", detail=detail))
    for component in manifest.components:
        count = sum(placement.component_key == component.key for placement in body.placement_intent)
        if not component.min <= count <= component.max:
            detail = f"{component.key}: {count} placed, between {component.min} and {component.max} needed"
            problems.append(FieldError(pointer="/placement_intent", detail=detail))
    if problems:
        raise Refusal(Code.PLACEMENT_INVALID, "; ".join(problem.detail for problem in problems), errors=problems)
    return found


def _placement_problem(
    placement: Placement,
    all_placements: list[Placement],
    manifest: Manifest,
    found: dict[str, Row],
    live: list[Row],
) -> str | None:
    component = manifest.component(placement.component_key)
    if component is None:
        return f"{manifest.slug} has no component {placement.component_key!r}"
    row = found.get(placement.allocation_id)
    if row is None:
        return f"the project has no allocation {placement.allocation_id!r}"
    if row["status"] != AllocationStatus.ACTIVE:
        return f"allocation {row['name']} is {row['status']}, not active"
    users = [member for member in live if member["allocation_id"] == placement.allocation_id]
    if users:
        return f"allocation {row['name']} is used by {users[0]['instance_name']} already"
    sharing = [
        other for other in all_placements if other is not placement and other.allocation_id == placement.allocation_id
    ]
    present = {other.component_key for other in sharing}
    if missing := [key for key in component.must_share_machine_with if key not in present]:
        return f"{component.key} must be placed on the same allocation as {', '.join(missing)}"
    for other in sharing:
        if other.component_key not in component.may_share_machine_with:
            return f"{component.key} may not share allocation {row['name']} with {other.component_key}"
    shape, needs = Shape.model_validate(row["shape"]), component.requires_capacity_shape
    if shape.cpus < needs.cpus or shape.memory_mib < needs.memory_mib or shape.gpus < needs.gpus:
        return (
            f"allocation {row['name']} is too small for {component.key}: it needs {needs.cpus} CPUs, "
            f"{needs.memory_mib} MiB, {needs.gpus} GPUs"
        )
    return None
