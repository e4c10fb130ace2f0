"""Allocations, and what they used."""

from fastapi import Response

from gpuaas_contract.access import AccessGrant, PersonAccessRequest
from gpuaas_contract.allocations import (
    Allocation,
    AllocationBatch,
    AllocationBatchCreate,
    AllocationCreate,
    AllocationPage,
    AllocationRelease,
    AllocationResize,
    AllocationRestart,
    AllocationStatus,
    AllocationUpdate,
    Timeline,
)
from gpuaas_contract.usage import UsageKind, UsagePage
from gpuaas_platform.allocations.records import AllocationFilter
from gpuaas_platform.allocations.service import allocations, usage
from gpuaas_platform.allocations.service import requests as allocation_requests
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.operations.service import resizes

routes = Routes("allocations")


@routes.post("/allocations", Permission.ALLOCATION_CREATE, status_code=201, response_model=Allocation)
async def create_allocation(ctx: Ctx, body: AllocationCreate) -> Response:
    plan = ctx.platform.plan
    return await ctx.mutate(lambda tx: allocation_requests.create_allocation(tx, ctx.caller, body, plan), 201)


@routes.post("/allocations/batch", Permission.ALLOCATION_CREATE, status_code=201, response_model=AllocationBatch)
async def create_allocation_batch(ctx: Ctx, body: AllocationBatchCreate) -> Response:
    """Several alike in one step; where one of them is refused, none is made."""
    plan = ctx.platform.plan
    return await ctx.mutate(lambda tx: allocation_requests.create_batch(tx, ctx.caller, body, plan), 201)


@routes.get("/allocations", Permission.ALLOCATION_READ, response_model=AllocationPage)
async def list_allocations(
    ctx: Ctx,
    project_id: str | None = None,
    tenant_id: str | None = None,
    status: AllocationStatus | None = None,
    name: str | None = None,
    node_id: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> AllocationPage:
    """Of a project, of a tenant itself, or all that the caller may see."""
    async with ctx.read() as tx:
        filters = AllocationFilter(status, name, node_id)
        return await allocations.list_allocations(tx, ctx.caller, project_id, tenant_id, filters, cursor, limit)


@routes.get("/allocations/{allocation_id}", Permission.ALLOCATION_READ, response_model=Allocation)
async def get_allocation(ctx: Ctx, allocation_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await allocations.get_allocation(tx, ctx.caller, allocation_id))


@routes.get("/allocations/{allocation_id}/timeline", Permission.ALLOCATION_READ, response_model=Timeline)
async def get_allocation_timeline(
    ctx: Ctx, allocation_id: str, step: str | None = None, correlation_id: str | None = None
) -> Timeline:
    """Every step of its life, those of one kind, or all that one request led to."""
    async with ctx.read() as tx:
        return await allocations.get_timeline(tx, ctx.caller, allocation_id, step, correlation_id)


@routes.patch("/allocations/{allocation_id}", Permission.ALLOCATION_UPDATE, response_model=Allocation)
async def update_allocation(ctx: Ctx, allocation_id: str, body: AllocationUpdate) -> Response:
    return await ctx.mutate(lambda tx: allocations.update_allocation(tx, ctx.caller, allocation_id, body))


@routes.post("/allocations/{allocation_id}/restart", Permission.ALLOCATION_UPDATE, response_model=Allocation)
async def restart_allocation(ctx: Ctx, allocation_id: str, body: AllocationRestart) -> Response:
    """The machine goes down in order and comes up again, with its disk, its address and its host key."""
    return await ctx.mutate(lambda tx: allocations.restart_allocation(tx, ctx.caller, allocation_id, body))


@routes.post("/allocations/{allocation_id}/resize", Permission.ALLOCATION_UPDATE, response_model=Allocation)
async def resize_allocation(ctx: Ctx, allocation_id: str, body: AllocationResize) -> Response:
    """While it runs, on the node where it is; refused where that node has no room. Apps that live on it and can be
    asked are asked first: the machine is `asking` until they have agreed or refused."""
    return await ctx.mutate(lambda tx: resizes.resize_allocation(tx, ctx.caller, allocation_id, body))


@routes.post("/allocations/{allocation_id}/retry", Permission.ALLOCATION_UPDATE, response_model=Allocation)
async def retry_allocation(ctx: Ctx, allocation_id: str) -> Response:
    """Try a failed creation or release again."""
    return await ctx.mutate(lambda tx: allocations.retry_allocation(tx, ctx.caller, allocation_id, ctx.platform.plan))


@routes.post("/allocations/{allocation_id}/release", Permission.ALLOCATION_RELEASE, response_model=Allocation)
async def release_allocation(ctx: Ctx, allocation_id: str, body: AllocationRelease | None = None) -> Response:
    """It is destroyed with all that is on its own disk. Its volumes stay, unless they are to go with it."""
    asked = body or AllocationRelease()
    return await ctx.mutate(lambda tx: allocations.release_allocation(tx, ctx.caller, allocation_id, asked))


@routes.post("/allocations/{allocation_id}/access", Permission.ALLOCATION_ACCESS, response_model=AccessGrant)
async def grant_allocation_access(ctx: Ctx, allocation_id: str, body: PersonAccessRequest) -> AccessGrant:
    """A certificate of minutes for the caller's own user, by a grant; for the machine's own, by a role. Every call
    makes a fresh one, whatever its idempotency key."""
    return await ctx.platform.person_access.grant(ctx.caller, ctx.correlation_id, allocation_id, body)


@routes.get("/usage", Permission.USAGE_READ, response_model=UsagePage)
async def list_usage(
    ctx: Ctx,
    project_id: str | None = None,
    tenant_id: str | None = None,
    allocation_id: str | None = None,
    kind: UsageKind | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> UsagePage:
    async with ctx.read() as tx:
        return await usage.list_usage(tx, ctx.caller, project_id, tenant_id, allocation_id, kind, cursor, limit)
