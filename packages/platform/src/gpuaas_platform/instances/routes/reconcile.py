"""Reconcile leases of app instances, and what their holders may do."""

from fastapi import Response

from gpuaas_contract.access import AccessGrant, LeaseAccessRequest
from gpuaas_contract.operations import ClaimRequest, LeaseRequest
from gpuaas_contract.reconcile import ReconcileClaim, ReconcileLease
from gpuaas_platform.api.context import Ctx
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.instances.service import reconcile

routes = Routes("reconcile")
_LEASE = "/app-instances/{instance_id}/reconcile-lease"


@routes.post(_LEASE, Permission.OPERATION_WORK, response_model=ReconcileClaim)
async def claim_reconcile_lease(ctx: Ctx, instance_id: str, body: ClaimRequest) -> Response:
    """Look after the instance from now on. Refused while another process does."""
    return await ctx.mutate(lambda tx: reconcile.claim_lease(tx, ctx.caller, instance_id, body))


@routes.post(f"{_LEASE}/heartbeat", Permission.OPERATION_WORK, response_model=ReconcileLease)
async def heartbeat_reconcile_lease(ctx: Ctx, instance_id: str, body: LeaseRequest) -> Response:
    return await ctx.mutate(lambda tx: reconcile.heartbeat(tx, ctx.caller, instance_id, body.fencing_token))


@routes.post(f"{_LEASE}/yield", Permission.OPERATION_WORK, response_model=ReconcileLease)
async def yield_reconcile_lease(ctx: Ctx, instance_id: str, body: LeaseRequest) -> Response:
    return await ctx.mutate(lambda tx: reconcile.yield_lease(tx, ctx.caller, instance_id, body.fencing_token))


@routes.post(f"{_LEASE}/access", Permission.OPERATION_WORK, response_model=AccessGrant)
async def grant_observer_access(ctx: Ctx, instance_id: str, body: LeaseAccessRequest) -> AccessGrant:
    """A certificate for all machines of the instance, as a user who may look and change nothing."""
    return await ctx.platform.observer_access.grant(ctx.caller, ctx.correlation_id, instance_id, body)
