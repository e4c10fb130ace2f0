"""The audit trail: who did what, and proof that nobody altered it."""

from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import FAILURE, CliError
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun(__name__, __doc__)
Tenant = Annotated[str | None, Parameter(help="The audit trail of this tenant.")]


@app.command(name="list")
async def list_(
    *,
    last: Annotated[int, Parameter(help="Only this many of the newest.")] = 50,
    tenant: Tenant = None,
    platform: Annotated[bool, Parameter(negative="", help="The whole platform (operators).")] = False,
    action: Annotated[str | None, Parameter(help="Only this action, or actions with this prefix.")] = None,
    who: Annotated[str | None, Parameter(help="Only entries of this principal, by id.")] = None,
    target: Annotated[str | None, Parameter(help="Only entries about this target, by id.")] = None,
    outcome: Annotated[str | None, Parameter(help="succeeded or denied.")] = None,
    correlation: Annotated[str | None, Parameter(help="Only entries with this correlation id.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """List the newest audit entries: of the project, of a tenant, or of the whole platform."""
    async with open_session(options) as session:
        tenant_id = (await resolve.tenant(session, tenant)).id if tenant else None
        project_id = None if platform or tenant else await session.project_id()
        found = await session.client.audit.list(
            tenant_id=tenant_id,
            project_id=project_id,
            action=action,
            principal_id=who,
            target=target,
            outcome=outcome,
            correlation_id=correlation,
            limit=200,
        ).all()
    columns = {
        "at": lambda e: e.at,
        "who": lambda e: e.principal_id,
        "action": lambda e: e.action,
        "target": lambda e: e.target,
        "outcome": lambda e: e.outcome,
        "correlation id": lambda e: e.correlation_id,
    }
    output.items(found[-last:] if last > 0 else found, columns, empty="No audit entries.")


@app.command
async def verify(*, tenant: Tenant = None, options: Options = DEFAULTS) -> None:
    """Verify that no entry of an audit trail was changed or removed: a tenant's, or the platform's own.

    All hashes are computed here and compared with the head that the platform signed. Exit code 0: the trail is
    intact. Exit code 1: it is broken; the first problem is printed.
    """
    async with open_session(options) as session:
        from gpuaas_sdk.audit import AuditBroken, verify_audit

        found = await resolve.tenant(session, tenant) if tenant else None
        chain = f"the audit trail of {found.name}" if found else "the platform's own audit trail"
        try:
            report = await verify_audit(session.client, found.id if found else None)
        except AuditBroken as broken:
            output.document({"chain": found.id if found else "platform", "whole": False, "reason": str(broken)})
            raise CliError(f"{chain} is BROKEN: {broken}", FAILURE, hint="keep a copy and tell the operator") from None
    verdict = {
        "chain": found.id if found else "platform",
        "whole": True,
        "entries": report.entries,
        "batches": report.batches,
        "newest_batch_is_signed": report.checkpoint_covers,
        "public_key": report.public_key,
    }
    if not output.document(verdict):
        head = "head signed" if report.checkpoint_covers else "the newest not signed yet"
        print(f"{chain} is intact: {report.entries} entries in {report.batches} sealed batches, {head}")
