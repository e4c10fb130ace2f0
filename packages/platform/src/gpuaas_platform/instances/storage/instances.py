"""App instances and members."""

from typing import Any

from gpuaas_platform.core.database import Row, Transaction, json_list

# An app that refuses a resize, or finds something before a change, is as well as before: those operations say
# nothing of its state. Nor does what was cancelled before anybody claimed it.
_LIFE = """
           (SELECT jsonb_object_agg(c.component_key, jsonb_build_array(c.present, c.staying)) FROM (
               SELECT m.component_key, count(*) AS present, count(*) FILTER (WHERE NOT EXISTS (
                   SELECT FROM operations o WHERE o.member_id = m.id AND o.kind = 'remove'
                     AND o.state IN ('pending', 'running'))) AS staying
               FROM members m WHERE m.instance_id = i.id AND m.status <> 'removed'
                 AND NOT EXISTS (SELECT FROM operations o WHERE o.instance_id = i.id
                       AND o.state IN ('pending', 'running') AND o.replacement_member_id = m.id)
               GROUP BY 1) c) AS counts,
           coalesce((SELECT jsonb_agg(jsonb_build_object('id', o.id, 'kind', o.kind, 'member_id', o.member_id,
                       'replacement_member_id', o.replacement_member_id, 'queued', o.queued) ORDER BY o.number)
               FROM operations o WHERE o.instance_id = i.id AND o.state IN ('pending', 'running')
                 AND o.kind <> 'preflight'), '[]') AS open_operations,
           EXISTS (SELECT FROM operations o WHERE o.instance_id = i.id AND o.kind = 'deploy'
                     AND o.state = 'succeeded') AS deployed,
           (SELECT jsonb_build_object('id', o.id, 'kind', o.kind, 'state', o.state, 'error', o.error)
            FROM operations o WHERE o.instance_id = i.id AND o.member_id IS NULL AND NOT o.queued
              AND o.kind <> 'preflight' AND NOT (o.state = 'cancelled' AND o.attempt = 0)
            ORDER BY o.number DESC LIMIT 1) AS last_operation
"""
"""What the rules need to know of an instance beside its row."""
_SELECT = f"""
    SELECT i.*, p.tenant_id, v.version AS app_version, v.manifest,
           v.status AS app_status, v.reason AS app_status_reason,
           (SELECT to_jsonb(r) || jsonb_build_object('expired', r.expires_at <= now())
            FROM reconcile_leases r WHERE r.instance_id = i.id) AS reconcile_lease,
           ARRAY(SELECT DISTINCT m.status FROM members m WHERE m.instance_id = i.id AND m.status <> 'removed')
               AS live_statuses,
{_LIFE},
           EXISTS (SELECT FROM (
               SELECT DISTINCT ON (o.member_id) o.state, o.error FROM operations o
               LEFT JOIN members m ON m.id = o.member_id
               WHERE o.instance_id = i.id AND (o.kind = 'decommission' OR i.desired_state <> 'decommissioned')
                 AND o.kind NOT IN ('resize', 'preflight') AND m.status IS DISTINCT FROM 'removed'
                 AND NOT (o.state = 'cancelled' AND o.attempt = 0)
               ORDER BY o.member_id, o.number DESC) newest
               WHERE newest.state = 'failed' AND NOT coalesce((newest.error->>'member_usable')::boolean, false))
               AS failed,
           (SELECT o.kind || ': ' || (o.error->>'detail') FROM operations o
            WHERE o.instance_id = i.id AND o.state = 'failed' AND o.kind NOT IN ('resize', 'preflight')
              AND (o.kind = 'decommission' OR i.desired_state <> 'decommissioned')
            ORDER BY o.ended_at DESC LIMIT 1) AS last_failure
    FROM instances i JOIN projects p ON p.id = i.project_id JOIN app_versions v ON v.id = i.app_version_id
"""  # noqa: S608 - constants
_MEMBER = """
    SELECT m.*, i.project_id, i.app_slug, p.tenant_id, last.kind AS last_kind, last.state AS last_state
    FROM members m JOIN instances i ON i.id = m.instance_id JOIN projects p ON p.id = i.project_id
    LEFT JOIN LATERAL (SELECT o.kind, o.state FROM operations o WHERE o.member_id = m.id
        AND o.kind NOT IN ('resize', 'preflight') AND NOT (o.state = 'cancelled' AND o.attempt = 0)
        ORDER BY o.number DESC LIMIT 1) last ON true
"""


async def insert(
    tx: Transaction,
    id: str,
    project_id: str,
    app_slug: str,
    app_version_id: str,
    name: str,
    mode: str | None,
    inputs: dict[str, Any],
    placement_intent: list[dict[str, Any]],
    access_credential_id: str | None = None,
) -> Row | None:
    return await tx.one(
        """INSERT INTO instances (id, project_id, app_slug, app_version_id, name, mode, inputs,
                                  placement_intent, access_credential_id, desired_state, correlation_id)
           VALUES (%(id)s, %(project)s, %(slug)s, %(version)s, %(name)s, %(mode)s, %(inputs)s, %(placement)s,
                   %(credential)s, 'running', %(correlation)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        project=project_id,
        slug=app_slug,
        version=app_version_id,
        name=name,
        mode=mode,
        inputs=inputs,
        placement=json_list(placement_intent),
        credential=access_credential_id,
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
    await lock_row(tx, id)
    return await get(tx, id)


async def lock_row(tx: Transaction, id: str) -> None:
    await tx.one("SELECT 1 FROM instances WHERE id = %(id)s FOR UPDATE", id=id)


async def list_lives(tx: Transaction, ids: list[str]) -> list[Row]:
    """Only what the rules need to know of them: this is on the way of every operation. One is asked for by its key: a
    statement over a list is planned anew each time."""
    return await tx.all(
        f"""SELECT i.id, i.mode, i.desired_state, i.ended_at, i.app_version_id, v.manifest, {_LIFE}
            FROM instances i JOIN app_versions v ON v.id = i.app_version_id
            WHERE i.id = {"%(id)s" if len(ids) == 1 else "ANY(%(ids)s)"}""",  # noqa: S608 - constants
        id=ids[0] if ids else None,
        ids=ids,
    )


async def list_matching(
    tx: Transaction, project_ids: list[str] | None, app_slug: str | None, after: str, limit: int
) -> list[Row]:
    return await tx.all(
        _SELECT
        + """ WHERE i.id > %(after)s AND (%(projects)s::text[] IS NULL OR i.project_id = ANY(%(projects)s))
               AND (%(app)s::text IS NULL OR i.app_slug = %(app)s)
             ORDER BY i.id LIMIT %(limit)s""",
        projects=project_ids,
        app=app_slug,
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


async def set_desired(
    tx: Transaction,
    id: str,
    *,
    desired_state: str | None = None,
    inputs: dict[str, Any] | None = None,
    app_version_id: str | None = None,
) -> Row:
    """Want something else from now on: the next generation. Readiness is reported anew after a stop."""
    row = await tx.one(
        """UPDATE instances SET desired_state = coalesce(%(desired)s, desired_state),
               inputs = coalesce(%(inputs)s::jsonb, inputs),
               app_version_id = coalesce(%(version)s, app_version_id),
               ready_since = CASE WHEN %(desired)s = 'running' AND desired_state = 'stopped' THEN generation + 1
                             ELSE ready_since END,
               generation = generation + 1, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        desired=desired_state,
        inputs=inputs,
        version=app_version_id,
    )
    assert row is not None
    return row


async def restore(tx: Transaction, id: str, before: dict[str, Any]) -> Row:
    """What was wanted before an operation that never began; wanting it is the next generation all the same."""
    row = await tx.one(
        """UPDATE instances SET desired_state = %(desired)s, inputs = %(inputs)s, app_version_id = %(version)s,
               ready_since = %(ready_since)s, generation = generation + 1, revision = revision + 1,
               updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        desired=before["desired_state"],
        inputs=before["inputs"],
        version=before["app_version_id"],
        ready_since=before["ready_since"],
    )
    assert row is not None
    return row


async def follow_members(tx: Transaction, id: str) -> Row | None:
    """The placement that is wanted is that of the members that live; None where it is so already."""
    return await tx.one(
        """WITH wanted AS (SELECT coalesce(jsonb_agg(jsonb_build_object('component_key', component_key,
                               'allocation_id', allocation_id) ORDER BY id), '[]') AS placement
                           FROM members WHERE instance_id = %(id)s AND status <> 'removed')
           UPDATE instances SET placement_intent = wanted.placement, generation = generation + 1,
               revision = revision + 1, updated_at = now()
           FROM wanted WHERE id = %(id)s AND placement_intent <> wanted.placement RETURNING instances.*""",
        id=id,
    )


async def write_off(tx: Transaction, id: str, unverified: dict[str, Any]) -> None:
    await tx.run("UPDATE instances SET unverified = %(unverified)s WHERE id = %(id)s", id=id, unverified=unverified)


async def end(tx: Transaction, id: str) -> Row:
    """Free the name of a decommissioned instance for the next one."""
    row = await tx.one(
        """UPDATE instances SET ended_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )
    assert row is not None
    return row


async def list_chosen_credentials(tx: Transaction, instance_id: str) -> dict[str, str]:
    """By allocation: the access credential that the deploy chose for it, for its member or for the instance."""
    rows = await tx.all(
        """SELECT m.allocation_id, min(coalesce(m.access_credential_id, i.access_credential_id)) AS credential_id
           FROM members m JOIN instances i ON i.id = m.instance_id
           WHERE i.id = %(id)s AND m.status <> 'removed'
             AND coalesce(m.access_credential_id, i.access_credential_id) IS NOT NULL
           GROUP BY m.allocation_id""",
        id=instance_id,
    )
    return {row["allocation_id"]: row["credential_id"] for row in rows}


async def list_machine_ids(tx: Transaction, instance_id: str) -> list[str]:
    rows = await tx.all(
        """SELECT DISTINCT allocation_id FROM members WHERE instance_id = %(id)s AND status <> 'removed'
           ORDER BY allocation_id""",
        id=instance_id,
    )
    return [row["allocation_id"] for row in rows]


async def insert_member(
    tx: Transaction,
    id: str,
    instance_id: str,
    component_key: str,
    allocation_id: str,
    node_id: str | None,
    replaces_member_id: str | None = None,
    access_credential_id: str | None = None,
) -> Row:
    row = await tx.one(
        """INSERT INTO members (id, instance_id, component_key, allocation_id, node_id, status, replaces_member_id,
                                access_credential_id, correlation_id)
           VALUES (%(id)s, %(instance)s, %(component)s, %(allocation)s, %(node)s, 'pending', %(replaces)s,
                   %(credential)s, %(correlation)s)
           RETURNING *""",
        id=id,
        instance=instance_id,
        component=component_key,
        allocation=allocation_id,
        node=node_id,
        replaces=replaces_member_id,
        credential=access_credential_id,
        correlation=tx.correlation_id,
    )
    assert row is not None
    return row


async def insert_members(tx: Transaction, instance_id: str, members: list[dict[str, Any]]) -> list[Row]:
    """Many at once, in their order: `id`, `component_key`, `allocation_id`, `node_id`, `operation_id`,
    `access_credential_id`."""
    numbered = [{**member, "number": number} for number, member in enumerate(members)]
    return await tx.all(
        """INSERT INTO members (id, instance_id, component_key, allocation_id, node_id, status, last_operation_id,
                                access_credential_id, correlation_id)
           SELECT r.id, %(instance)s, r.component_key, r.allocation_id, r.node_id, 'pending', r.operation_id,
                  r.access_credential_id, %(correlation)s
           FROM jsonb_to_recordset(%(members)s) AS r(number int, id text, component_key text, allocation_id text,
                node_id text, operation_id text, access_credential_id text) ORDER BY r.number RETURNING *""",
        instance=instance_id,
        members=json_list(numbered),
        correlation=tx.correlation_id,
    )


async def get_member(tx: Transaction, id: str) -> Row | None:
    return await tx.one(_MEMBER + " WHERE m.id = %(id)s", id=id)


async def get_members(tx: Transaction, ids: list[str]) -> dict[str, Row]:
    return {row["id"]: row for row in await tx.all(_MEMBER + " WHERE m.id = ANY(%(ids)s)", ids=ids)}


async def list_members(tx: Transaction, instance_id: str, removed: bool | None, after: str, limit: int) -> list[Row]:
    return await tx.all(
        _MEMBER
        + """ WHERE m.instance_id = %(instance)s AND m.id > %(after)s
               AND (%(removed)s::boolean IS NULL OR (m.status = 'removed') = %(removed)s)
             ORDER BY m.id LIMIT %(limit)s""",
        instance=instance_id,
        removed=removed,
        after=after,
        limit=limit,
    )


async def list_live(tx: Transaction, instance_id: str) -> list[Row]:
    return await tx.all(
        "SELECT * FROM members WHERE instance_id = %(id)s AND status <> 'removed' ORDER BY id", id=instance_id
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
    conditions: list[dict[str, Any]] | None = None,
    adapter_detail: dict[str, Any] | None = None,
    observed_runtime: str | None = None,
    unverified: dict[str, Any] | None = None,
) -> Row:
    row = await tx.one(
        """UPDATE members SET
               status = coalesce(%(status)s, status),
               conditions = coalesce(%(conditions)s::jsonb, conditions),
               adapter_detail = coalesce(%(detail)s::jsonb, adapter_detail),
               observed_runtime = coalesce(%(runtime)s, observed_runtime),
               unverified = coalesce(%(unverified)s::jsonb, unverified),
               revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        status=status,
        conditions=json_list(conditions),
        detail=adapter_detail,
        runtime=observed_runtime,
        unverified=unverified,
    )
    assert row is not None
    return row


async def set_last_operation(tx: Transaction, member_id: str, operation_id: str) -> None:
    await tx.run(
        "UPDATE members SET last_operation_id = %(operation)s, updated_at = now() WHERE id = %(id)s",
        id=member_id,
        operation=operation_id,
    )
