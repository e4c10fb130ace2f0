"""Nodes."""

from fastapi import Request, Response

from gpuaas_contract.nodes import Enrolment, EnrolRequest, JoinToken, JoinTokenCreate, Node, NodePage, NodeStatus
from gpuaas_contract.problems import Code
from gpuaas_platform.api.context import Ctx, Limit, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.nodes.service import nodes

routes = Routes("nodes")


@routes.post("/join-tokens", Permission.NODE_MANAGE, status_code=201, response_model=JoinToken)
async def create_join_token(ctx: Ctx, body: JoinTokenCreate) -> JoinToken:
    # The token is a secret that is shown once, so the answer is not kept for an idempotency key.
    async with ctx.write() as tx:
        return await nodes.create_join_token(tx, ctx.caller, body)


@routes.post("/nodes/enrol", Permission.ANONYMOUS, status_code=201, response_model=Enrolment)
async def enrol_node(request: Request, body: EnrolRequest) -> Enrolment:
    platform = platform_of(request)
    try:
        async with platform.database.system_transaction(request.state.correlation_id) as tx:
            return await nodes.enrol(tx, body)
    except Refusal as refusal:
        if refusal.code == Code.JOIN_TOKEN_INVALID:
            target = platform.failed_logins.name(body.join_token)
            platform.failed_logins.note("node.enrol_failed", target, request.state.correlation_id)
        raise


@routes.get("/nodes", Permission.NODE_READ, response_model=NodePage)
async def list_nodes(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> NodePage:
    async with ctx.read() as tx:
        return await nodes.list_nodes(tx, ctx.caller, cursor, limit)


@routes.get("/nodes/{node_id}", Permission.NODE_READ, response_model=Node)
async def get_node(ctx: Ctx, node_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await nodes.get_node(tx, ctx.caller, node_id))


@routes.post("/nodes/{node_id}/cordon", Permission.NODE_MANAGE, response_model=Node)
async def cordon_node(ctx: Ctx, node_id: str) -> Response:
    """It carries on with what it has and takes nothing new."""
    return await ctx.mutate(lambda tx: nodes.set_node_intent(tx, ctx.caller, node_id, NodeStatus.CORDONED))


@routes.post("/nodes/{node_id}/uncordon", Permission.NODE_MANAGE, response_model=Node)
async def uncordon_node(ctx: Ctx, node_id: str) -> Response:
    """It takes new allocations again, also where it was being drained."""
    return await ctx.mutate(lambda tx: nodes.set_node_intent(tx, ctx.caller, node_id, NodeStatus.READY))


@routes.post("/nodes/{node_id}/drain", Permission.NODE_MANAGE, response_model=Node)
async def drain_node(ctx: Ctx, node_id: str) -> Response:
    """It takes nothing new, and the timeline of each machine on it says that it is to be emptied."""
    return await ctx.mutate(lambda tx: nodes.drain_node(tx, ctx.caller, node_id))


@routes.post("/nodes/{node_id}/retire", Permission.NODE_MANAGE, response_model=Node)
async def retire_node(ctx: Ctx, node_id: str) -> Response:
    """For good, once it is empty. Its name may be used again."""
    return await ctx.mutate(lambda tx: nodes.retire_node(tx, ctx.caller, node_id))


@routes.post("/nodes/{node_id}/revoke-identity", Permission.NODE_MANAGE, response_model=Node)
async def revoke_node_identity(ctx: Ctx, node_id: str) -> Response:
    """Its agent is cut off at once; a new join token under the same name makes it the same node again."""
    return await ctx.mutate(lambda tx: nodes.revoke_identity(tx, ctx.caller, node_id))


@routes.post("/nodes/{node_id}/rotate-identity", Permission.NODE_MANAGE, response_model=Node)
async def rotate_node_identity(ctx: Ctx, node_id: str) -> Response:
    """Its agent makes a new key, and the old one is worthless from the first use of the new one on."""
    return await ctx.mutate(lambda tx: nodes.rotate_identity(tx, ctx.caller, node_id))
