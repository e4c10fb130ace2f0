"""The audit trail, and what is needed to check that nothing in it was touched."""

import asyncio
from typing import Annotated

import structlog
from fastapi import Query, Request, Response
from starlette.types import Receive, Scope, Send

from gpuaas_contract.audit import EXPORT_MEDIA_TYPE, AuditBatchPage, AuditCheckpoint, AuditOutcome, AuditPage
from gpuaas_platform.api.context import Ctx, Limit, authenticate
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.audit import service as audit
from gpuaas_platform.audit.records import AuditFilter
from gpuaas_platform.audit.service import AuditService, Export
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission

routes = Routes("audit")
log = structlog.get_logger()
MOST_BATCH = 2**53
WRITE_SECONDS = 30
"""A reader that takes nothing for so long is let go."""
_LINES = {"content": {EXPORT_MEDIA_TYPE: {"schema": {"type": "string"}}}, "description": "Lines of JSON."}


class ExportStream(Response):
    """Written a page at a time, at the pace of the reader."""

    media_type = EXPORT_MEDIA_TYPE

    def __init__(self, audit: AuditService, export: Export) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._audit = audit
        self._export = export

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._audit.exporting(self._export.caller.id):
            writing = asyncio.create_task(self._write(send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (writing, leaving):
                    task.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for text in self._export.pages():
                async with asyncio.timeout(WRITE_SECONDS):
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except Refusal as refusal:
            # Too late for it, too.
            log.info("audit_export_ended", principal=self._export.caller.id, reason=refusal.detail)
        except Exception:
            # Too late for a problem. Without its last line nobody takes it for whole.
            log.exception("audit_export_cut")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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


@routes.get("/audit/export", Permission.AUDIT_READ, response_class=Response, responses={200: _LINES})
async def export_audit_trail(
    ctx: Ctx,
    request: Request,
    tenant_id: str | None = None,
    project_id: str | None = None,
    action: str | None = None,
    principal_id: str | None = None,
    target: str | None = None,
    outcome: AuditOutcome | None = None,
    correlation_id: str | None = None,
    after_batch: Annotated[int, Query(ge=0, le=MOST_BATCH)] = 0,
) -> Response:
    """One chain as lines of JSON with all that is needed to check it without the platform: a tenant's, or the
    platform's own where no tenant and no project is named. Entries that the filters leave out are there by their
    hashes only. `after_batch` goes on behind an earlier export. The last line is `end`: without it, it was cut off."""
    only = AuditFilter(action, principal_id, target, outcome, correlation_id)

    async def who() -> Caller:
        return (await authenticate(request)).caller

    export = await ctx.platform.audit.export(
        ctx.caller, ctx.correlation_id, tenant_id, project_id, only, after_batch, who
    )
    return ExportStream(ctx.platform.audit, export)


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
