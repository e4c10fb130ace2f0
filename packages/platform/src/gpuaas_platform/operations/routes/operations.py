"""Operations, and what the holder of a lease may do."""

import asyncio
from typing import Annotated

from fastapi import Query, Response

from gpuaas_contract.access import AccessGrant, OperationAccessRequest
from gpuaas_contract.artifacts import Delivery, DeliveryRequest, DeliveryStatus
from gpuaas_contract.operations import (
    CancelledRequest,
    Claim,
    ClaimRequest,
    CompleteRequest,
    FailRequest,
    LeaseRequest,
    Operation,
    OperationPage,
    OperationState,
    StepReport,
    WorkAcknowledged,
)
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.wakeups import FEED
from gpuaas_platform.feed.service.changes import MAX_WAIT_SECONDS
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.nodes.service import deliveries
from gpuaas_platform.operations.service import operations, requests, work

routes = Routes("operations")


@routes.get("/operations", Permission.INSTANCE_READ, response_model=OperationPage)
async def list_operations(
    ctx: Ctx,
    project_id: str | None = None,
    instance_id: str | None = None,
    member_id: str | None = None,
    state: OperationState | None = None,
    claimable: bool = False,
    cursor: str | None = None,
    limit: Limit = 100,
) -> OperationPage:
    async with ctx.read() as tx:
        return await operations.list_operations(
            tx, ctx.caller, project_id, instance_id, member_id, state, claimable, cursor, limit
        )


@routes.get("/operations/{operation_id}", Permission.INSTANCE_READ, response_model=Operation)
async def get_operation(ctx: Ctx, operation_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await operations.get_operation(tx, ctx.caller, operation_id))


@routes.post("/operations/{operation_id}/retry", Permission.OPERATION_REQUEST, response_model=Operation)
async def retry_operation(ctx: Ctx, operation_id: str) -> Response:
    return await ctx.mutate(lambda tx: requests.retry_operation(tx, ctx.caller, operation_id))


@routes.post("/operations/{operation_id}/cancel", Permission.OPERATION_REQUEST, response_model=Operation)
async def cancel_operation(ctx: Ctx, operation_id: str) -> Response:
    return await ctx.mutate(lambda tx: requests.cancel_operation(tx, ctx.caller, operation_id))


@routes.post("/operations/{operation_id}/claim", Permission.OPERATION_WORK, response_model=Claim)
async def claim_operation(ctx: Ctx, operation_id: str, body: ClaimRequest) -> Response:
    seconds = ctx.platform.lease_seconds
    return await ctx.mutate(lambda tx: work.claim_operation(tx, ctx.caller, operation_id, body, seconds))


@routes.post("/operations/{operation_id}/heartbeat", Permission.OPERATION_WORK, response_model=WorkAcknowledged)
async def heartbeat_operation(ctx: Ctx, operation_id: str, body: LeaseRequest) -> Response:
    seconds = ctx.platform.lease_seconds
    return await ctx.mutate(lambda tx: work.heartbeat(tx, ctx.caller, operation_id, body.fencing_token, seconds))


@routes.post("/operations/{operation_id}/yield", Permission.OPERATION_WORK, response_model=Operation)
async def yield_operation(ctx: Ctx, operation_id: str, body: LeaseRequest) -> Response:
    return await ctx.mutate(lambda tx: work.yield_lease(tx, ctx.caller, operation_id, body.fencing_token))


@routes.post("/operations/{operation_id}/steps", Permission.OPERATION_WORK, response_model=WorkAcknowledged)
async def report_step(ctx: Ctx, operation_id: str, body: StepReport) -> Response:
    return await ctx.mutate(lambda tx: work.report_step(tx, ctx.caller, operation_id, body))


@routes.post("/operations/{operation_id}/complete", Permission.OPERATION_WORK, response_model=Operation)
async def complete_operation(ctx: Ctx, operation_id: str, body: CompleteRequest) -> Response:
    return await ctx.mutate(lambda tx: work.complete_operation(tx, ctx.caller, operation_id, body))


@routes.post("/operations/{operation_id}/fail", Permission.OPERATION_WORK, response_model=Operation)
async def fail_operation(ctx: Ctx, operation_id: str, body: FailRequest) -> Response:
    return await ctx.mutate(lambda tx: work.fail_operation(tx, ctx.caller, operation_id, body))


@routes.post("/operations/{operation_id}/cancelled", Permission.OPERATION_WORK, response_model=Operation)
async def end_cancelled_operation(ctx: Ctx, operation_id: str, body: CancelledRequest) -> Response:
    return await ctx.mutate(lambda tx: work.end_cancelled(tx, ctx.caller, operation_id, body))


@routes.post("/operations/{operation_id}/access", Permission.OPERATION_WORK, response_model=AccessGrant)
async def grant_operation_access(ctx: Ctx, operation_id: str, body: OperationAccessRequest) -> AccessGrant:
    return await ctx.platform.operation_access.grant(ctx.caller, ctx.correlation_id, operation_id, body)


@routes.post(
    "/operations/{operation_id}/deliveries", Permission.OPERATION_WORK, status_code=202, response_model=Delivery
)
async def request_delivery(ctx: Ctx, operation_id: str, body: DeliveryRequest) -> Response:
    return await ctx.mutate(lambda tx: deliveries.request_delivery(tx, ctx.caller, operation_id, body), 202)


@routes.get("/deliveries/{delivery_id}", Permission.OPERATION_WORK, response_model=Delivery)
async def get_delivery(
    ctx: Ctx, delivery_id: str, wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0
) -> Delivery:
    """With `wait`, answer when the delivery has ended, or after that many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    while True:
        woken = ctx.platform.wakeups.event(FEED)
        async with ctx.read() as tx:
            delivery = await deliveries.get_delivery(tx, ctx.caller, delivery_id)
        if delivery.status != DeliveryStatus.PENDING or loop.time() >= until:
            return delivery
        await ctx.platform.wakeups.wait(woken, until - loop.time())
