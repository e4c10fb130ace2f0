"""The audit trail: who did what, and proof that nobody altered it."""

from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import FAILURE, CliError
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun(__name__, __doc__)
Tenant = Annotated[str | None, Parameter(help="The trail of this tenant.")]


@app.command(name="list")
async def list_(
    *,
    last: Annotated[int, Parameter(help="Only so many, the newest ones.")] = 50,
    tenant: Tenant = None,
    platform: Annotated[bool, Parameter(negative="", help="Everything (operators).")] = False,
    action: Annotated[str | None, Parameter(help="Only this action, or those that begin with it.")] = None,
    who: Annotated[str | None, Parameter(help="Only what this principal did, by id.")] = None,
    target: Annotated[str | None, Parameter(help="Only what was done to this, by id.")] = None,
    outcome: Annotated[str | None, Parameter(help="succeeded or denied.")] = None,
    correlation: Annotated[str | None, Parameter(help="Only what has this correlation id.")] = None,
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
    output.items(found[-last:] if last > 0 else found, columns, empty="Nothing happened yet.")


@app.command
async def verify(*, tenant: Tenant = None, options: Options = DEFAULTS) -> None:
    """Check that nothing in the trail was changed, removed or cut off: a tenant's, or the platform's own.

    Every hash is computed here, from what the platform shows, and compared with the head that it signed. Exit
    code 0: the trail is whole. Exit code 1: it is not, and the first thing found is said.
    """
    async with open_session(options) as session:
        from gpuaas_sdk.audit import AuditBroken, verify_audit

        found = await resolve.tenant(session, tenant) if tenant else None
        chain = f"the trail of {found.name}" if found else "the platform's own trail"
        try:
            report = await verify_audit(session.client, found.id if found else None)
        except AuditBroken as broken:
            output.document({"chain": found.id if found else "platform", "whole": False, "reason": str(broken)})
            raise CliError(f"{chain} is BROKEN: {broken}", FAILURE, hint="tell the operator, keep a copy") from None
    verdict = {
        "chain": found.id if found else "platform",
        "whole": True,
        "entries": report.entries,
        "batches": report.batches,
        "newest_batch_is_signed": report.checkpoint_covers,
        "public_key": report.public_key,
    }
    if not output.document(verdict):
        head = "head signed" if report.checkpoint_covers else "the newest one not signed yet"
        print(f"{chain} is whole: {report.entries} entries in {report.batches} sealed batches, {head}")
