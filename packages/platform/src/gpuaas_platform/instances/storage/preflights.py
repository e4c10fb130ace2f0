"""Preflights, and the operations in which an app's controller looks."""

from collections.abc import Sequence

from gpuaas_contract.base import JsonObject
from gpuaas_contract.findings import Finding
from gpuaas_contract.preflights import AppChecks, PreflightState
from gpuaas_platform.core.database import Transaction, json_list
from gpuaas_platform.instances.records import PreflightRecord, PreflightSubject, PreflightView
from gpuaas_platform.operations.records import OperationRecord


async def insert(
    tx: Transaction,
    id: str,
    subject: PreflightSubject,
    allocation_ids: list[str],
    app_checks: AppChecks,
    findings: Sequence[Finding],
) -> PreflightRecord:
    """Insert a preflight; it is done where the app's own checks do not run."""
    state = PreflightState.RUNNING if app_checks == AppChecks.RUNNING else PreflightState.DONE
    return await tx.fetch(
        PreflightRecord,
        """INSERT INTO preflights (id, project_id, instance_id, app_slug, version, kind, request, allocation_ids,
                                   state, app_checks, findings, requested_by, correlation_id, ended_at)
           VALUES (%(id)s, %(project_id)s, %(instance_id)s, %(app_slug)s, %(version)s, %(kind)s, %(request)s,
                   %(allocation_ids)s, %(state)s, %(app_checks)s, %(findings)s, %(principal)s, %(correlation)s,
                   CASE WHEN %(state)s = 'done' THEN now() END) RETURNING *""",
        id=id,
        project_id=subject.project_id,
        instance_id=subject.instance_id,
        app_slug=subject.app_slug,
        version=subject.version,
        kind=subject.kind,
        request=subject.request,
        allocation_ids=allocation_ids,
        state=state.value,
        app_checks=app_checks.value,
        findings=json_list(_documents(findings)),
        principal=tx.principal_id,
        correlation=tx.correlation_id,
    )


def _documents(findings: Sequence[Finding]) -> list[JsonObject]:
    return [finding.model_dump(mode="json") for finding in findings]


async def insert_operation(
    tx: Transaction, id: str, preflight: PreflightRecord, deadline_seconds: int
) -> OperationRecord:
    """Insert an operation without an instance: it is about a request that was not made."""
    row = await tx.fetch(
        OperationRecord,
        """INSERT INTO operations (id, preflight_id, project_id, app_slug, kind, input, state, deadline,
                                   deadline_seconds, requested_by, correlation_id)
           VALUES (%(id)s, %(preflight)s, %(project)s, %(slug)s, 'preflight', %(input)s, 'pending',
                   now() + make_interval(secs => %(deadline)s), %(deadline)s, %(principal)s, %(correlation)s)
           RETURNING *""",
        id=id,
        preflight=preflight.id,
        project=preflight.project_id,
        slug=preflight.app_slug,
        input={"preflight_id": preflight.id},
        deadline=deadline_seconds,
        principal=tx.principal_id,
        correlation=tx.correlation_id,
    )
    await tx.run("UPDATE preflights SET operation_id = %(operation)s WHERE id = %(id)s", operation=id, id=preflight.id)
    return row


async def get(tx: Transaction, id: str) -> PreflightView | None:
    return await tx.find(
        PreflightView,
        """SELECT f.*, p.tenant_id FROM preflights f JOIN projects p ON p.id = f.project_id WHERE f.id = %(id)s""",
        id=id,
    )


async def finish(tx: Transaction, id: str, app_checks: AppChecks, findings: Sequence[Finding]) -> PreflightRecord:
    return await tx.fetch(
        PreflightRecord,
        """UPDATE preflights SET state = 'done', app_checks = %(checks)s, findings = findings || %(findings)s::jsonb,
               ended_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        checks=app_checks,
        findings=json_list(_documents(findings)),
    )
