"""The audit trail: who did what, and proof that nobody altered it."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import FAILURE, USAGE, CliError
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
        "from": lambda e: e.address,
        "correlation id": lambda e: e.correlation_id,
    }
    output.items(found[-last:] if last > 0 else found, columns, empty="No audit entries.")


@app.command
async def export(
    *,
    file: Annotated[Path | None, Parameter(help="Write to this file, which must not exist; default: stdout.")] = None,
    tenant: Tenant = None,
    platform: Annotated[bool, Parameter(negative="", help="The platform's own trail (operators).")] = False,
    action: Annotated[str | None, Parameter(help="Only this action, or actions with this prefix.")] = None,
    who: Annotated[str | None, Parameter(help="Only entries of this principal, by id.")] = None,
    target: Annotated[str | None, Parameter(help="Only entries about this target, by id.")] = None,
    outcome: Annotated[str | None, Parameter(help="succeeded or denied.")] = None,
    correlation: Annotated[str | None, Parameter(help="Only entries with this correlation id.")] = None,
    after_batch: Annotated[int | None, Parameter(help="Go on behind the last batch of an earlier export.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Export sealed audit entries as JSON lines: of the project, of a tenant, or of the platform itself.

    The lines hold all that is needed to check them later without the platform: gpuaas audit verify --file FILE.
    Entries that are left out are there by their hashes only. The newest second may not be sealed yet.

    gpuaas audit export --tenant acme --file acme.jsonl
    """
    async with open_session(options) as session:
        tenant_id = (await resolve.tenant(session, tenant)).id if tenant else None
        project_id = None if platform or tenant else await session.project_id()
        lines = session.client.audit.export(
            tenant_id=tenant_id,
            project_id=project_id,
            action=action,
            principal_id=who,
            target=target,
            outcome=outcome,
            correlation_id=correlation,
            after_batch=after_batch,
        )
        last = await _write(lines, file)
    if not last.startswith('{"end":'):
        raise CliError("the export was cut off before its end", FAILURE, hint="remove it and export again")
    output.note(f"exported{f' to {file}' if file else ''}: {last}")


async def _write(lines: AsyncIterator[str], file: Path | None) -> str:
    """Write the lines as they come; return the last one."""
    last = ""
    with _opened(file) as target:
        async for line in lines:
            print(line, file=target)
            last = line
    return last


def _opened(file: Path | None) -> AbstractContextManager[TextIO]:
    if file is None:
        return nullcontext(sys.stdout)
    try:
        # Whoever reads the file learns who does what: its owner alone may.
        return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
    except OSError as error:
        hint = "name a file that does not exist yet"
        raise CliError(f"cannot write {file}: {error.strerror}", USAGE, hint=hint) from None


@app.command
async def verify(
    *,
    tenant: Tenant = None,
    file: Annotated[Path | None, Parameter(help="Check this export, without the platform.")] = None,
    public_key: Annotated[
        str | None, Parameter(help="With --file: the key that must have signed it, as verify printed it before.")
    ] = None,
    options: Options = DEFAULTS,
) -> None:
    """Verify that no entry of an audit trail was changed or removed: a tenant's, or the platform's own.

    All hashes are computed here and compared with the head that the platform signed. Exit code 0: the trail is
    intact. Exit code 1: it is broken; the first problem is printed. With --file, an export is checked.
    """
    if file is not None:
        _verify_file(file, public_key)
        return
    if public_key is not None:
        raise CliError("--public-key goes with --file", USAGE)
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


def _verify_file(file: Path, public_key: str | None) -> None:
    from gpuaas_sdk.audit import AuditBroken, verify_export

    try:
        with file.open() as lines:
            report = verify_export(lines, public_key=public_key)
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file}: {error}", USAGE) from None
    except AuditBroken as broken:
        output.document({"file": str(file), "whole": False, "reason": str(broken)})
        raise CliError(f"the export {file} is BROKEN: {broken}", FAILURE, hint="keep it and export again") from None
    verdict = {
        "file": str(file),
        "chain": report.chain,
        "whole": True,
        "first_batch": report.first_batch,
        "last_batch": report.last_batch,
        "entries": report.entries,
        "omitted": report.omitted,
        "signed_up_to": report.signed_up_to,
        "public_key": report.public_key,
    }
    if not output.document(verdict):
        span = f"batches {report.first_batch} to {report.last_batch}, signed up to {report.signed_up_to}"
        left_out = f" and the hashes of {report.omitted} others" if report.omitted else ""
        print(f"the export of {report.chain} is intact: {report.entries} entries{left_out} in {span}")
        print(f"signed with the key {report.public_key}")
