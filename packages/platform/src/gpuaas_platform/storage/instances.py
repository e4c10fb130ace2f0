"""App instances and members."""

from typing import Any

from gpuaas_platform.storage.database import Row, Transaction, json_list

# An app that refuses a resize is as well as before: those operations say nothing of its state.
_SELECT = """
    SELECT i.*, p.tenant_id, v.version AS app_version, v.manifest,
           (SELECT to_jsonb(r) || jsonb_build_object('expired', r.expires_at <= now())
            FROM reconcile_leases r WHERE r.instance_id = i.id) AS reconcile_lease,
           coalesce((SELECT array_agg(m.status) FROM members m WHERE m.instance_id = i.id), '{}')
               AS member_statuses,
           coalesce((SELECT array_agg(o.state) FROM (
               SELECT DISTINCT ON (member_id) state FROM operations WHERE instance_id = i.id
                 AND (kind = 'decommission' OR i.desired_state <> 'decommissioned') AND kind <> 'resize'
               ORDER BY member_id, id DESC) o), '{}') AS last_states,
           (SELECT o.kind || ': ' || (o.error->>'detail') FROM operations o
            WHERE o.instance_id = i.id AND o.state = 'failed' AND o.kind <> 'resize'
              AND (o.kind = 'decommission' OR i.desired_state <> 'decommissioned')
            ORDER BY o.ended_at DESC LIMIT 1) AS last_failure
    FROM instances i JOIN projects p ON p.id = i.project_id JOIN app_versions v ON v.id = i.app_version_id
"""


async def insert(
    tx: Transaction,
    id: str,
    project_id: str,
    app_slug: str,
    app_version_id: str,
    name: str,
    inputs: dict[str, Any],
    placement_intent: list[dict[str, Any]],
) -> Row | None:
    return await tx.one(
        """INSERT INTO instances (id, project_id, app_slug, app_version_id, name, inputs, placement_intent,
                                  desired_state, correlation_id)
           VALUES (%(id)s, %(project)s, %(slug)s, %(version)s, %(name)s, %(inputs)s, %(placement)s, 'running',
                   %(correlation)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        project=project_id,
        slug=app_slug,
        version=app_version_id,
        name=name,
        inputs=inputs,
        placement=json_list(placement_intent),
        correlation=tx.correlation_id,
    )


async def has_live_name(tx: Transaction, project_id: str, name: str) -> bool:
    row = await tx.one(
        "SELECT 1 FROM instances WHERE project_id = %(project)s AND name = %(name)s AND ended_at IS NULL",
        project=project_id,
        name=name,
    )
    return row is not None


async def get(tx: Transaction, id: str) -> Row | None:
    return await tx.one(_SELECT + " WHERE i.id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> Row | None:
    await tx.one("SELECT 1 FROM instances WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def list_matching(tx: Transaction, project_ids: list[str] | None, after: str, limit: int) -> list[Row]:
    return await tx.all(
        _SELECT
        + """ WHERE i.id > %(after)s AND (%(projects)s::text[] IS NULL OR i.project_id = ANY(%(projects)s))
             ORDER BY i.id LIMIT %(limit)s""",
        projects=project_ids,
        after=after,
        limit=limit,
    )


async def report(
    tx: Transaction,
    id: str,
    conditions: list[dict[str, Any]] | None,
    access_notes: list[dict[str, Any]] | None,
    observed_runtime: str | None,
) -> Row:
    row = await tx.one(
        """UPDATE instances SET
               conditions = coalesce(%(conditions)s::jsonb, conditions),
               access_notes = coalesce(%(notes)s::jsonb, access_notes),
               observed_runtime = coalesce(%(runtime)s, observed_runtime),
               revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        conditions=json_list(conditions),
        notes=json_list(access_notes),
        runtime=observed_runtime,
    )
    assert row is not None
    return row


async def set_decommissioned(tx: Transaction, id: str) -> Row:
    """Say that the instance is to go; it is gone when its members are."""
    row = await tx.one(
        """UPDATE instances SET desired_state = 'decommissioned', generation = generation + 1,
               revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=id,
    )
    assert row is not None
    return row


async def end(tx: Transaction, id: str) -> Row:
    """Free the name of a decommissioned instance for the next one."""
    row = await tx.one(
        """UPDATE instances SET ended_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )
    assert row is not None
    return row


async def list_machine_ids(tx: Transaction, instance_id: str) -> list[str]:
    rows = await tx.all(
        """SELECT DISTINCT allocation_id FROM members WHERE instance_id = %(id)s AND status <> 'removed'
           ORDER BY allocation_id""",
        id=instance_id,
    )
    return [row["allocation_id"] for row in rows]


async def insert_member(
    tx: Transaction, id: str, instance_id: str, component_key: str, allocation_id: str, node_id: str | None
) -> Row:
    row = await tx.one(
        """INSERT INTO members (id, instance_id, component_key, allocation_id, node_id, status, correlation_id)
           VALUES (%(id)s, %(instance)s, %(component)s, %(allocation)s, %(node)s, 'pending', %(correlation)s)
           RETURNING *""",
        id=id,
        instance=instance_id,
        component=component_key,
        allocation=allocation_id,
        node=node_id,
        correlation=tx.correlation_id,
    )
    assert row is not None
    return row


async def get_member(tx: Transaction, id: str) -> Row | None:
    return await tx.one(
        """SELECT m.*, i.project_id, i.app_slug, p.tenant_id FROM members m
           JOIN instances i ON i.id = m.instance_id JOIN projects p ON p.id = i.project_id
           WHERE m.id = %(id)s""",
        id=id,
    )


async def list_members(tx: Transaction, instance_id: str, after: str, limit: int) -> list[Row]:
    return await tx.all(
        """SELECT * FROM members WHERE instance_id = %(instance)s AND id > %(after)s
           ORDER BY id LIMIT %(limit)s""",
        instance=instance_id,
        after=after,
        limit=limit,
    )


async def list_live_on(tx: Transaction, allocation_ids: list[str]) -> list[Row]:
    return await tx.all(
        """SELECT m.*, i.name AS instance_name FROM members m JOIN instances i ON i.id = m.instance_id
           WHERE m.allocation_id = ANY(%(ids)s) AND m.status <> 'removed'""",
        ids=allocation_ids,
    )


async def report_member(
    tx: Transaction,
    id: str,
    status: str | None,
    conditions: list[dict[str, Any]] | None,
    adapter_detail: dict[str, Any] | None,
) -> Row:
    row = await tx.one(
        """UPDATE members SET
               status = coalesce(%(status)s, status),
               conditions = coalesce(%(conditions)s::jsonb, conditions),
               adapter_detail = coalesce(%(detail)s::jsonb, adapter_detail),
               revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        status=status,
        conditions=json_list(conditions),
        detail=adapter_detail,
    )
    assert row is not None
    return row


async def set_last_operation(tx: Transaction, member_id: str, operation_id: str) -> None:
    await tx.run(
        "UPDATE members SET last_operation_id = %(operation)s, updated_at = now() WHERE id = %(id)s",
        id=member_id,
        operation=operation_id,
    )
