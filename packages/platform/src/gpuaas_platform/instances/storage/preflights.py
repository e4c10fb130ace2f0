"""Preflights, and the operations in which an app's controller looks."""

from typing import Any

from gpuaas_platform.core.database import Row, Transaction, json_list


async def insert(tx: Transaction, id: str, fields: dict[str, Any], findings: list[dict[str, Any]]) -> Row:
    row = await tx.one(
        """INSERT INTO preflights (id, project_id, instance_id, app_slug, version, kind, request, allocation_ids,
                                   state, app_checks, findings, requested_by, correlation_id, ended_at)
           VALUES (%(id)s, %(project_id)s, %(instance_id)s, %(app_slug)s, %(version)s, %(kind)s, %(request)s,
                   %(allocation_ids)s, %(state)s, %(app_checks)s, %(findings)s, %(principal)s, %(correlation)s,
                   CASE WHEN %(state)s = 'done' THEN now() END) RETURNING *""",
        id=id,
        principal=tx.principal_id,
        correlation=tx.correlation_id,
        findings=json_list(findings),
        **fields,
    )
    assert row is not None
    return row


async def insert_operation(tx: Transaction, id: str, preflight: Row, deadline_seconds: int) -> Row:
    """An operation without an instance: it is about what is only being thought of."""
    row = await tx.one(
        """INSERT INTO operations (id, preflight_id, project_id, app_slug, kind, input, state, deadline,
                                   deadline_seconds, requested_by, correlation_id)
           VALUES (%(id)s, %(preflight)s, %(project)s, %(slug)s, 'preflight', %(input)s, 'pending',
                   now() + make_interval(secs => %(deadline)s), %(deadline)s, %(principal)s, %(correlation)s)
           RETURNING *""",
        id=id,
        preflight=preflight["id"],
        project=preflight["project_id"],
        slug=preflight["app_slug"],
        input={"preflight_id": preflight["id"]},
        deadline=deadline_seconds,
        principal=tx.principal_id,
        correlation=tx.correlation_id,
    )
    await tx.run(
        "UPDATE preflights SET operation_id = %(operation)s WHERE id = %(id)s", operation=id, id=preflight["id"]
    )
    assert row is not None
    return row


async def get(tx: Transaction, id: str) -> Row | None:
    return await tx.one(
        """SELECT f.*, p.tenant_id FROM preflights f JOIN projects p ON p.id = f.project_id WHERE f.id = %(id)s""",
        id=id,
    )


async def finish(tx: Transaction, id: str, app_checks: str, findings: list[dict[str, Any]]) -> Row:
    row = await tx.one(
        """UPDATE preflights SET state = 'done', app_checks = %(checks)s, findings = findings || %(findings)s::jsonb,
               ended_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        checks=app_checks,
        findings=json_list(findings),
    )
    assert row is not None
    return row


async def list_live_members(tx: Transaction, instance_id: str) -> list[Row]:
    return await tx.all(
        """SELECT id, component_key, allocation_id FROM members
           WHERE instance_id = %(id)s AND status <> 'removed' ORDER BY id""",
        id=instance_id,
    )
