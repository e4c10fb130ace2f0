"""Usage records: what machines are charged for, and what apps report."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.usage import UsageRecord

app = noun(__name__, __doc__)
InTenant = Annotated[str | None, Parameter(help="Of this tenant's own machines instead of the project's.")]


def show_records(records: "Sequence[UsageRecord]") -> None:
    columns = {
        "machine": lambda r: r.allocation_name,
        "kind": lambda r: r.kind,
        "from": lambda r: r.started_at,
        "until": lambda r: r.ended_at or "now",
        "seconds": lambda r: f"{r.seconds:.0f}",
        "cpus": lambda r: r.shapes[-1].shape.cpus,
        "gpus": lambda r: r.shapes[-1].shape.gpus,
        "allocation": lambda r: r.allocation_id,
    }
    output.items(records, columns, empty="No usage yet.")


@app.command(name="list")
async def list_(
    *,
    occupied: Annotated[bool, Parameter(negative="", help="Time on nodes instead of charged time.")] = False,
    tenant: InTenant = None,
    options: Options = DEFAULTS,
) -> None:
    """List the charged time of each machine of the project, or of a tenant itself."""
    from gpuaas_contract.usage import UsageKind

    kind = UsageKind.OCCUPIED if occupied else UsageKind.CHARGED
    async with open_session(options) as session:
        if tenant is not None:
            found = session.client.usage.list(tenant_id=(await resolve.tenant(session, tenant)).id, kind=kind)
        else:
            found = session.client.usage.list(project_id=await session.project_id(), kind=kind)
        show_records(await found.all())


@app.command(name="app")
async def app_(
    *,
    instance: Annotated[str | None, Parameter(help="Only this instance.")] = None,
    subject: Annotated[str | None, Parameter(help="Only this subject, as the app names it.")] = None,
    unit: Annotated[str | None, Parameter(help="Only this unit.")] = None,
    work: Annotated[str | None, Parameter(help="Only this work id.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """List the usage that apps reported for the project's instances."""
    async with open_session(options) as session:
        instance_id = None if instance is None else (await resolve.instance(session, instance)).id
        found = await session.client.app_usage.list(
            project_id=await session.project_id(), instance_id=instance_id, subject=subject, unit=unit, work_id=work
        ).all()
    columns = {
        "work": lambda r: r.work_id,
        "subject": lambda r: r.subject,
        "quantity": lambda r: r.quantity.normalize(),
        "unit": lambda r: r.unit,
        "from": lambda r: r.started_at,
        "until": lambda r: r.ended_at,
        "app": lambda r: r.app_slug,
        "record": lambda r: r.record_id,
    }
    output.items(found, columns, empty="No app has reported any usage.")
