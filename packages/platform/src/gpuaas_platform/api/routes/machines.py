"""Nodes and allocations."""

from fastapi import Request, Response

from gpuaas_contract.access import AccessGrant, AccessRequest
from gpuaas_contract.allocations import (
    Allocation,
    AllocationCreate,
    AllocationPage,
    AllocationStatus,
    Timeline,
)
from gpuaas_contract.nodes import Enrolment, EnrolRequest, JoinToken, JoinTokenCreate, Node, NodePage
from gpuaas_platform.api.context import Ctx, Limit, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.domain.policy import Permission
from gpuaas_platform.services import allocations, nodes

routes = Routes("machines")


@routes.post("/join-tokens", Permission.NODE_MANAGE, status_code=201, response_model=JoinToken)
async def create_join_token(ctx: Ctx, body: JoinTokenCreate) -> JoinToken:
    # The token is a secret that is shown once, so the answer is not kept for an idempotency key.
    async with ctx.write() as tx:
        return await nodes.create_join_token(tx, ctx.caller, body)


@routes.post("/nodes/enrol", Permission.ANONYMOUS, status_code=201, response_model=Enrolment)
async def enrol_node(request: Request, body: EnrolRequest) -> Enrolment:
    async with platform_of(request).database.system_transaction(request.state.correlation_id) as tx:
        return await nodes.enrol(tx, body)


@routes.get("/nodes", Permission.NODE_READ, response_model=NodePage)
async def list_nodes(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> NodePage:
    async with ctx.read() as tx:
        return await nodes.list_nodes(tx, ctx.caller, cursor, limit)


@routes.get("/nodes/{node_id}", Permission.NODE_READ, response_model=Node)
async def get_node(ctx: Ctx, node_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await nodes.get_node(tx, ctx.caller, node_id))


@routes.post("/allocations", Permission.ALLOCATION_CREATE, status_code=201, response_model=Allocation)
async def create_allocation(ctx: Ctx, body: AllocationCreate) -> Response:
    return await ctx.mutate(lambda tx: allocations.create_allocation(tx, ctx.caller, body, ctx.platform.plan), 201)


@routes.get("/allocations", Permission.ALLOCATION_READ, response_model=AllocationPage)
async def list_allocations(
    ctx: Ctx,
    project_id: str | None = None,
    status: AllocationStatus | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> AllocationPage:
    async with ctx.read() as tx:
        return await allocations.list_allocations(tx, ctx.caller, project_id, status, cursor, limit)


@routes.get("/allocations/{allocation_id}", Permission.ALLOCATION_READ, response_model=Allocation)
async def get_allocation(ctx: Ctx, allocation_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await allocations.get_allocation(tx, ctx.caller, allocation_id))


@routes.get("/allocations/{allocation_id}/timeline", Permission.ALLOCATION_READ, response_model=Timeline)
async def get_allocation_timeline(ctx: Ctx, allocation_id: str) -> Timeline:
    async with ctx.read() as tx:
        return await allocations.get_timeline(tx, ctx.caller, allocation_id)


@routes.post("/allocations/{allocation_id}/release", Permission.ALLOCATION_RELEASE, response_model=Allocation)
async def release_allocation(ctx: Ctx, allocation_id: str) -> Response:
    return await ctx.mutate(lambda tx: allocations.release_allocation(tx, ctx.caller, allocation_id))


@routes.post("/allocations/{allocation_id}/access", Permission.ALLOCATION_ACCESS, response_model=AccessGrant)
async def grant_allocation_access(ctx: Ctx, allocation_id: str, body: AccessRequest) -> AccessGrant:
    """Every call makes a fresh grant, whatever its idempotency key: a certificate lives for minutes."""
    return await ctx.platform.access.grant_person(ctx.caller, ctx.correlation_id, allocation_id, body)
