"""Preflights: what stands in the way of a deploy or an operation."""

import asyncio
from typing import Annotated

from fastapi import Query, Response

from gpuaas_contract.bulk import MemberOperationsCreate, MembersAdd
from gpuaas_contract.instances import InstanceDeploy
from gpuaas_contract.operations import OperationCreate
from gpuaas_contract.preflights import Preflight, PreflightState
from gpuaas_platform.api.context import Ctx
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.wakeups import FEED
from gpuaas_platform.feed.service.changes import MAX_WAIT_SECONDS
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.instances.service import preflights
from gpuaas_platform.operations.service import bulks

routes = Routes("preflights")


@routes.post("/app-instances/preflight", Permission.INSTANCE_DEPLOY, status_code=201, response_model=Preflight)
async def preflight_deploy(ctx: Ctx, body: InstanceDeploy) -> Response:
    """The body of a deploy. Every finding is listed, nothing is changed."""
    return await ctx.mutate(lambda tx: preflights.preflight_deploy(tx, ctx.caller, body), 201)


@routes.post(
    "/app-instances/{instance_id}/preflight", Permission.OPERATION_REQUEST, status_code=201, response_model=Preflight
)
async def preflight_instance(
    ctx: Ctx, instance_id: str, body: OperationCreate | MembersAdd | MemberOperationsCreate
) -> Response:
    """The body of an operation on the instance or a member, of an addition of members, or of one operation on many."""
    return await ctx.mutate(
        lambda tx: preflights.preflight_instance(tx, ctx.caller, instance_id, body, bulks.request_any), 201
    )


@routes.get("/preflights/{preflight_id}", Permission.INSTANCE_READ, response_model=Preflight)
async def get_preflight(
    ctx: Ctx, preflight_id: str, wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0
) -> Response:
    """With `wait`, answer when the app's own checks are done, too, or after that many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    while True:
        woken = ctx.platform.wakeups.event(FEED)
        async with ctx.read() as tx:
            found = await preflights.get_preflight(tx, ctx.caller, preflight_id)
        if found.state == PreflightState.DONE or loop.time() >= until:
            return ctx.show(found)
        await ctx.platform.wakeups.wait(woken, until - loop.time())
