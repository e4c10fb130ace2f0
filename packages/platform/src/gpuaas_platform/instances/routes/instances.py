"""App instances and members."""

from fastapi import Response

from gpuaas_contract.bulk import Bulk, BulkPage, MemberOperationsCreate, MembersAdd
from gpuaas_contract.instances import (
    Instance,
    InstanceDeploy,
    InstancePage,
    InstanceReport,
    InstanceUpdate,
    Member,
    MemberPage,
    MemberReport,
    WriteOff,
)
from gpuaas_contract.operations import Operation, OperationCreate
from gpuaas_contract.people import PersonPage
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.instances.service import deploy, instances, people, updates
from gpuaas_platform.operations.service import bulks, reports, requests, write_offs

routes = Routes("instances")


@routes.post("/app-instances", Permission.INSTANCE_DEPLOY, status_code=201, response_model=Instance)
async def deploy_instance(ctx: Ctx, body: InstanceDeploy) -> Response:
    return await ctx.mutate(lambda tx: deploy.deploy_instance(tx, ctx.caller, body), 201)


@routes.get("/app-instances", Permission.INSTANCE_READ, response_model=InstancePage)
async def list_instances(
    ctx: Ctx, project_id: str | None = None, cursor: str | None = None, limit: Limit = 100
) -> InstancePage:
    async with ctx.read() as tx:
        return await instances.list_instances(tx, ctx.caller, project_id, cursor, limit)


@routes.get("/app-instances/{instance_id}", Permission.INSTANCE_READ, response_model=Instance)
async def get_instance(ctx: Ctx, instance_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await instances.get_instance(tx, ctx.caller, instance_id))


@routes.patch("/app-instances/{instance_id}", Permission.INSTANCE_DEPLOY, response_model=Instance)
async def update_instance(ctx: Ctx, instance_id: str, body: InstanceUpdate) -> Response:
    """Change the mode of an instance whose members and machines fit the other one."""
    return await ctx.mutate(lambda tx: updates.update_instance(tx, ctx.caller, instance_id, body))


@routes.get("/app-instances/{instance_id}/members", Permission.INSTANCE_READ, response_model=MemberPage)
async def list_members(
    ctx: Ctx, instance_id: str, removed: bool | None = None, cursor: str | None = None, limit: Limit = 100
) -> MemberPage:
    """All, also those that are removed; with `removed`, only those that are or are not."""
    async with ctx.read() as tx:
        return await instances.list_members(tx, ctx.caller, instance_id, removed, cursor, limit)


@routes.get("/app-instances/{instance_id}/people", Permission.PEOPLE_READ, response_model=PersonPage)
async def list_people(ctx: Ctx, instance_id: str, cursor: str | None = None, limit: Limit = 100) -> PersonPage:
    """Everybody who may use the instance, and who just lost that right. Empty for an app without an entrance."""
    async with ctx.read() as tx:
        return await people.list_people(tx, ctx.caller, instance_id, cursor, limit)


@routes.post("/app-instances/{instance_id}/members", Permission.OPERATION_REQUEST, status_code=201, response_model=Bulk)
async def add_members(ctx: Ctx, instance_id: str, body: MembersAdd) -> Response:
    """Add members on machines of the owner, each with an `add` operation."""
    return await ctx.mutate(lambda tx: bulks.add_members(tx, ctx.caller, instance_id, body), 201)


@routes.post(
    "/app-instances/{instance_id}/member-operations",
    Permission.OPERATION_REQUEST,
    status_code=201,
    response_model=Bulk,
)
async def request_member_operations(ctx: Ctx, instance_id: str, body: MemberOperationsCreate) -> Response:
    """The same operation on many members."""
    return await ctx.mutate(lambda tx: bulks.request_on_members(tx, ctx.caller, instance_id, body), 201)


@routes.get("/app-instances/{instance_id}/bulk-operations", Permission.INSTANCE_READ, response_model=BulkPage)
async def list_bulk_operations(ctx: Ctx, instance_id: str, cursor: str | None = None, limit: Limit = 100) -> BulkPage:
    async with ctx.read() as tx:
        return await bulks.list_bulks(tx, ctx.caller, instance_id, cursor, limit)


@routes.get("/bulk-operations/{bulk_id}", Permission.INSTANCE_READ, response_model=Bulk)
async def get_bulk_operation(ctx: Ctx, bulk_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await bulks.get_bulk(tx, ctx.caller, bulk_id))


@routes.post("/app-instances/{instance_id}/abandon", Permission.OPERATION_REQUEST, response_model=Instance)
async def abandon_instance(ctx: Ctx, instance_id: str, body: WriteOff) -> Response:
    """After a decommission failed: end the instance without proof that nothing is left."""
    return await ctx.mutate(lambda tx: write_offs.abandon_instance(tx, ctx.caller, instance_id, body))


@routes.post(
    "/app-instances/{instance_id}/operations",
    Permission.OPERATION_START,
    status_code=201,
    response_model=Operation,
)
async def request_operation(ctx: Ctx, instance_id: str, body: OperationCreate) -> Response:
    return await ctx.mutate(lambda tx: requests.request_operation(tx, ctx.caller, instance_id, body), 201)


@routes.post("/app-instances/{instance_id}/report", Permission.OPERATION_WORK, response_model=Instance)
async def report_instance(ctx: Ctx, instance_id: str, body: InstanceReport) -> Response:
    return await ctx.mutate(lambda tx: reports.report_instance(tx, ctx.caller, instance_id, body))


@routes.get("/members/{member_id}", Permission.INSTANCE_READ, response_model=Member)
async def get_member(ctx: Ctx, member_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await instances.get_member(tx, ctx.caller, member_id))


@routes.post("/members/{member_id}/forget", Permission.OPERATION_REQUEST, response_model=Member)
async def forget_member(ctx: Ctx, member_id: str, body: WriteOff) -> Response:
    """After its removal failed: make it a tombstone without proof that nothing is left."""
    return await ctx.mutate(lambda tx: write_offs.forget_member(tx, ctx.caller, member_id, body))


@routes.post("/members/{member_id}/report", Permission.OPERATION_WORK, response_model=Member)
async def report_member(ctx: Ctx, member_id: str, body: MemberReport) -> Response:
    return await ctx.mutate(lambda tx: reports.report_member(tx, ctx.caller, member_id, body))
