"""The audit trail, and what is needed to check that nothing in it was touched."""

from gpuaas_contract.audit import AuditBatchPage, AuditCheckpoint, AuditOutcome, AuditPage
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.audit import service as audit
from gpuaas_platform.audit.records import AuditFilter
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("audit")


@routes.get("/audit", Permission.AUDIT_READ, response_model=AuditPage)
async def list_audit_entries(
    ctx: Ctx,
    tenant_id: str | None = None,
    project_id: str | None = None,
    action: str | None = None,
    principal_id: str | None = None,
    target: str | None = None,
    outcome: AuditOutcome | None = None,
    correlation_id: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> AuditPage:
    """Oldest first. `action` names one action, or all that begin with it."""
    only = AuditFilter(action, principal_id, target, outcome, correlation_id)
    async with ctx.read() as tx:
        return await audit.list_entries(tx, ctx.caller, tenant_id, project_id, only, cursor, limit)


@routes.get("/audit/sealed", Permission.AUDIT_READ, response_model=AuditPage)
async def list_sealed_audit_entries(
    ctx: Ctx, tenant_id: str | None = None, cursor: str | None = None, limit: Limit = 500
) -> AuditPage:
    """One chain in its order: a tenant's, or the platform's own where no tenant is named."""
    async with ctx.read() as tx:
        return await audit.list_sealed(tx, ctx.caller, tenant_id, cursor, limit)


@routes.get("/audit/batches", Permission.AUDIT_READ, response_model=AuditBatchPage)
async def list_audit_batches(
    ctx: Ctx, tenant_id: str | None = None, cursor: str | None = None, limit: Limit = 500
) -> AuditBatchPage:
    async with ctx.read() as tx:
        return await audit.list_batches(tx, ctx.caller, tenant_id, cursor, limit)


@routes.get("/audit/checkpoint", Permission.AUDIT_READ, response_model=AuditCheckpoint)
async def get_audit_checkpoint(ctx: Ctx, tenant_id: str | None = None) -> AuditCheckpoint:
    """The signed head of the chain, from outside the database."""
    return await ctx.platform.audit.checkpoint(ctx.caller, ctx.correlation_id, tenant_id)
