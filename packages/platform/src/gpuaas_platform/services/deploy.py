"""Deploying an app: instance, members and operations in one transaction."""

from gpuaas_contract import ids
from gpuaas_contract.instances import Instance, InstanceDeploy
from gpuaas_contract.problems import Code
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import Caller, Permission
from gpuaas_platform.services import operations
from gpuaas_platform.services.catalogue import deployable_version, manifest_of
from gpuaas_platform.services.deploy_checks import check_deploy, name_taken, refusal_of, refuse_errors
from gpuaas_platform.services.identity import require_project
from gpuaas_platform.services.inputs import check_inputs
from gpuaas_platform.services.instances import reread, to_model
from gpuaas_platform.storage import instances as store
from gpuaas_platform.storage.database import Transaction


async def deploy_instance(tx: Transaction, caller: Caller, body: InstanceDeploy) -> Instance:
    """Instance, members and operations appear together or not at all."""
    project = await require_project(tx, caller, body.project_id, Permission.INSTANCE_DEPLOY)
    version = await deployable_version(tx, caller, project["tenant_id"], body.app_slug, body.version)
    manifest = manifest_of(version)
    plan = await check_deploy(tx, body, manifest, lock=True)
    refuse_errors(plan.findings)
    row = await store.insert(
        tx,
        ids.new_id(ids.INSTANCE),
        body.project_id,
        manifest.slug,
        version["id"],
        body.name,
        plan.mode,
        plan.inputs,
        [placement.model_dump(exclude_none=True) for placement in body.placement_intent],
        None if body.access is None else body.access.credential_id,
    )
    if row is None:
        raise refusal_of([name_taken(body.name)])
    await tx.audit("app_instance.deploy", row["id"], project_id=body.project_id)
    await tx.changed("instance", row, "created", project_id=row["project_id"], instance_id=row["id"])
    # The primary member first: its operation is the deploy, the others join it.
    ordered = sorted(body.placement_intent, key=lambda placement: placement.component_key != manifest.primary.key)
    for placement in ordered:
        node_id = plan.allocations[placement.allocation_id]["node_id"]
        member = await store.insert_member(
            tx,
            ids.new_id(ids.MEMBER),
            row["id"],
            placement.component_key,
            placement.allocation_id,
            node_id,
            access_credential_id=None if placement.access is None else placement.access.credential_id,
        )
        await tx.changed("member", member, "created", project_id=row["project_id"], instance_id=row["id"])
        kind = "deploy" if placement.component_key == manifest.primary.key else "add"
        declared = manifest.operation(kind, placement.component_key)
        if declared is None:
            raise Refusal(Code.INVALID_REQUEST, f"{manifest.slug} {manifest.version} has no operation {kind!r}")
        await operations.insert(tx, row, declared, member["id"], check_inputs({}, declared.input_schema, "/input"))
    return to_model(await reread(tx, row["id"]))
