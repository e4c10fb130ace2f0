"""App instances and members."""

from collections.abc import Sequence
from dataclasses import asdict

from gpuaas_contract.base import JsonObject, Resource
from gpuaas_contract.instances import AccessNote, Condition, MemberStatus, Unverified
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.core.database import Transaction, json_list
from gpuaas_platform.identity.storage.presence import OPERATOR
from gpuaas_platform.instances.records import (
    InstanceRecord,
    InstanceSummary,
    InstanceView,
    LiveMember,
    MachineUser,
    MemberRecord,
    MemberView,
    NewInstance,
    NewMember,
)
from gpuaas_platform.operations.records import PreviousDesire

# An app that refuses a resize, or finds something before a change, is as well as before: those operations say
# nothing of its state. Nor does what was cancelled before anybody claimed it, nor what failed on a member that was
# reported to be well since: how it is now counts, not what happened to it.
_FACTS = """
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
"""The facts that the rules need of an instance beside its row."""
WELL_SINCE = """(m.status IN ('ready', 'drained') AND m.updated_at > o.ended_at AND NOT EXISTS (
                   SELECT FROM jsonb_array_elements(m.conditions) c
                   WHERE c->>'type' = 'Ready' AND c->>'status' <> 'true'
                      OR c->>'type' = 'Degraded' AND c->>'status' <> 'false'))"""
"""Whether member m was reported to be well after operation o had failed on it."""
_SELECT = f"""
    SELECT i.*, p.tenant_id, v.version AS app_version, v.manifest,
           v.status AS app_status, v.reason AS app_status_reason,
           (SELECT to_jsonb(a) || '{{"usable": true}}' FROM ({OPERATOR} WHERE s.id = i.operator_account_id) a)
               AS operator,
           (SELECT to_jsonb(r) || jsonb_build_object('expired', r.expires_at <= now())
            FROM reconcile_leases r WHERE r.instance_id = i.id) AS reconcile_lease,
           ARRAY(SELECT DISTINCT m.status FROM members m WHERE m.instance_id = i.id AND m.status <> 'removed')
               AS live_statuses,
{_FACTS},
           EXISTS (SELECT FROM (
               SELECT DISTINCT ON (o.member_id) o.state, o.error, {WELL_SINCE} AS well_since FROM operations o
               LEFT JOIN members m ON m.id = o.member_id
               WHERE o.instance_id = i.id AND (o.kind = 'decommission' OR i.desired_state <> 'decommissioned')
                 AND o.kind NOT IN ('resize', 'preflight') AND m.status IS DISTINCT FROM 'removed'
                 AND NOT (o.state = 'cancelled' AND o.attempt = 0)
               ORDER BY o.member_id, o.number DESC) newest
               WHERE newest.state = 'failed' AND NOT coalesce((newest.error->>'member_usable')::boolean, false)
                 AND newest.well_since IS NOT TRUE)
               AS failed,
           (SELECT o.kind || ': ' || (o.error->>'detail') FROM operations o
            WHERE o.instance_id = i.id AND o.state = 'failed' AND o.kind NOT IN ('resize', 'preflight')
              AND (o.kind = 'decommission' OR i.desired_state <> 'decommissioned')
            ORDER BY o.ended_at DESC LIMIT 1) AS last_failure
    FROM instances i JOIN projects p ON p.id = i.project_id JOIN app_versions v ON v.id = i.app_version_id
"""  # noqa: S608 - constants
_MEMBER = """
    SELECT m.*, i.project_id, i.app_slug, i.operator_account_id, p.tenant_id,
           last.kind AS last_kind, last.state AS last_state
    FROM members m JOIN instances i ON i.id = m.instance_id JOIN projects p ON p.id = i.project_id
    LEFT JOIN LATERAL (SELECT o.kind, o.state FROM operations o WHERE o.member_id = m.id
        AND o.kind NOT IN ('resize', 'preflight') AND NOT (o.state = 'cancelled' AND o.attempt = 0)
        ORDER BY o.number DESC LIMIT 1) last ON true
"""


async def insert(tx: Transaction, instance: NewInstance) -> InstanceRecord | None:
    """Return None where the project has a live instance of that name."""
    placements = [placement.model_dump(exclude_none=True) for placement in instance.placement_intent]
    return await tx.find(
        InstanceRecord,
        """INSERT INTO instances (id, project_id, app_slug, app_version_id, name, mode, inputs,
                                  placement_intent, access_credential_id, operator_account_id, desired_state,
                                  correlation_id)
           VALUES (%(id)s, %(project)s, %(slug)s, %(version)s, %(name)s, %(mode)s, %(inputs)s, %(placement)s,
                   %(credential)s, %(operator)s, 'running', %(correlation)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=instance.id,
        project=instance.project_id,
        slug=instance.app_slug,
        version=instance.app_version_id,
        name=instance.name,
        mode=instance.mode,
        inputs=instance.inputs,
        placement=json_list(placements),
        credential=instance.access_credential_id,
        operator=instance.operator_account_id,
        correlation=tx.correlation_id,
    )


async def has_live_name(tx: Transaction, project_id: str, name: str) -> bool:
    row = await tx.one(
        "SELECT 1 FROM instances WHERE project_id = %(project)s AND name = %(name)s AND ended_at IS NULL",
        project=project_id,
        name=name,
    )
    return row is not None


async def get(tx: Transaction, id: str) -> InstanceView | None:
    return await tx.find(InstanceView, _SELECT + " WHERE i.id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> InstanceView | None:
    await lock_row(tx, id)
    return await get(tx, id)


async def lock_row(tx: Transaction, id: str) -> None:
    await tx.one("SELECT 1 FROM instances WHERE id = %(id)s FOR UPDATE", id=id)


async def list_summaries(tx: Transaction, ids: list[str]) -> list[InstanceSummary]:
    """List only the facts that the rules need. One instance is asked for by its key: a statement over a list is
    planned anew each time."""
    return await tx.fetch_all(
        InstanceSummary,
        f"""SELECT i.id, i.mode, i.desired_state, i.ended_at, i.app_version_id, v.manifest, {_FACTS}
            FROM instances i JOIN app_versions v ON v.id = i.app_version_id
            WHERE i.id = {"%(id)s" if len(ids) == 1 else "ANY(%(ids)s)"}""",  # noqa: S608 - constants
        id=ids[0] if ids else None,
        ids=ids,
    )


async def list_matching(
    tx: Transaction, project_ids: list[str] | None, app_slug: str | None, after: str, limit: int
) -> list[InstanceView]:
    return await tx.fetch_all(
        InstanceView,
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
    conditions: Sequence[Condition] | None,
    access_notes: Sequence[AccessNote] | None,
    observed_runtime: str | None,
) -> InstanceRecord:
    return await tx.fetch(
        InstanceRecord,
        """UPDATE instances SET
               conditions = coalesce(%(conditions)s::jsonb, conditions),
               access_notes = coalesce(%(notes)s::jsonb, access_notes),
               observed_runtime = coalesce(%(runtime)s, observed_runtime),
               revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        conditions=json_list(_documents(conditions)),
        notes=json_list(_documents(access_notes)),
        runtime=observed_runtime,
    )


async def set_desired(
    tx: Transaction,
    id: str,
    *,
    desired_state: str | None = None,
    inputs: JsonObject | None = None,
    app_version_id: str | None = None,
) -> InstanceRecord:
    """Want something else from now on: the next generation. Readiness is reported anew after a stop."""
    return await tx.fetch(
        InstanceRecord,
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


async def set_mode(tx: Transaction, id: str, mode: str) -> InstanceRecord:
    return await tx.fetch(
        InstanceRecord,
        """UPDATE instances SET mode = %(mode)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        mode=mode,
    )


async def set_operator(tx: Transaction, id: str, account_id: str | None) -> InstanceRecord:
    return await tx.fetch(
        InstanceRecord,
        """UPDATE instances SET operator_account_id = %(account)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        account=account_id,
    )


async def restore(tx: Transaction, id: str, before: PreviousDesire) -> InstanceRecord:
    """Want what was wanted before an operation that never began; it is the next generation all the same."""
    return await tx.fetch(
        InstanceRecord,
        """UPDATE instances SET desired_state = %(desired)s, inputs = %(inputs)s, app_version_id = %(version)s,
               ready_since = %(ready_since)s, generation = generation + 1, revision = revision + 1,
               updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        desired=before.desired_state,
        inputs=before.inputs,
        version=before.app_version_id,
        ready_since=before.ready_since,
    )


async def follow_members(tx: Transaction, id: str) -> InstanceRecord | None:
    """Want the placement of the members that live; None where it is wanted already."""
    return await tx.find(
        InstanceRecord,
        """WITH wanted AS (SELECT coalesce(jsonb_agg(jsonb_build_object('component_key', component_key,
                               'allocation_id', allocation_id) ORDER BY id), '[]') AS placement
                           FROM members WHERE instance_id = %(id)s AND status <> 'removed')
           UPDATE instances SET placement_intent = wanted.placement, generation = generation + 1,
               revision = revision + 1, updated_at = now()
           FROM wanted WHERE id = %(id)s AND placement_intent <> wanted.placement RETURNING instances.*""",
        id=id,
    )


async def write_off(tx: Transaction, id: str, unverified: Unverified) -> None:
    document = unverified.model_dump(mode="json")
    await tx.run("UPDATE instances SET unverified = %(unverified)s WHERE id = %(id)s", id=id, unverified=document)


async def end(tx: Transaction, id: str) -> InstanceRecord:
    """Free the name of a decommissioned instance for the next one."""
    return await tx.fetch(
        InstanceRecord,
        """UPDATE instances SET ended_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )


async def list_chosen_credentials(tx: Transaction, instance_id: str) -> dict[str, str]:
    """List by allocation the access credential that the deploy chose for it, for its member or for the instance."""
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


async def insert_member(tx: Transaction, instance_id: str, member: NewMember) -> MemberRecord:
    return await tx.fetch(
        MemberRecord,
        """INSERT INTO members (id, instance_id, component_key, allocation_id, node_id, status, replaces_member_id,
                                access_credential_id, correlation_id)
           VALUES (%(id)s, %(instance)s, %(component)s, %(allocation)s, %(node)s, 'pending', %(replaces)s,
                   %(credential)s, %(correlation)s)
           RETURNING *""",
        id=member.id,
        instance=instance_id,
        component=member.component_key,
        allocation=member.allocation_id,
        node=member.node_id,
        replaces=member.replaces_member_id,
        credential=member.access_credential_id,
        correlation=tx.correlation_id,
    )


async def insert_members(tx: Transaction, instance_id: str, members: list[NewMember]) -> list[MemberRecord]:
    """Insert many at once, in their order."""
    numbered = [{**asdict(member), "number": number} for number, member in enumerate(members)]
    return await tx.fetch_all(
        MemberRecord,
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


async def get_member(tx: Transaction, id: str) -> MemberView | None:
    return await tx.find(MemberView, _MEMBER + " WHERE m.id = %(id)s", id=id)


async def get_members(tx: Transaction, ids: list[str]) -> dict[str, MemberView]:
    rows = await tx.fetch_all(MemberView, _MEMBER + " WHERE m.id = ANY(%(ids)s)", ids=ids)
    return {row.id: row for row in rows}


async def list_members(
    tx: Transaction, instance_id: str, removed: bool | None, after: str, limit: int
) -> list[MemberView]:
    return await tx.fetch_all(
        MemberView,
        _MEMBER
        + """ WHERE m.instance_id = %(instance)s AND m.id > %(after)s
               AND (%(removed)s::boolean IS NULL OR (m.status = 'removed') = %(removed)s)
             ORDER BY m.id LIMIT %(limit)s""",
        instance=instance_id,
        removed=removed,
        after=after,
        limit=limit,
    )


async def list_live(tx: Transaction, instance_id: str) -> list[LiveMember]:
    return await tx.fetch_all(
        LiveMember,
        """SELECT id, component_key, allocation_id FROM members
           WHERE instance_id = %(id)s AND status <> 'removed' ORDER BY id""",
        id=instance_id,
    )


async def list_live_on(tx: Transaction, allocation_ids: list[str]) -> list[MachineUser]:
    return await tx.fetch_all(
        MachineUser,
        """SELECT m.*, i.name AS instance_name FROM members m JOIN instances i ON i.id = m.instance_id
           WHERE m.allocation_id = ANY(%(ids)s) AND m.status <> 'removed'""",
        ids=allocation_ids,
    )


async def report_member(
    tx: Transaction,
    id: str,
    status: str | None,
    conditions: Sequence[Condition] | None = None,
    adapter_detail: JsonObject | None = None,
    observed_runtime: str | None = None,
    unverified: Unverified | None = None,
) -> MemberRecord:
    if status == MemberStatus.REMOVED:
        await access_store.end_of_member(tx, id)
    return await tx.fetch(
        MemberRecord,
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
        conditions=json_list(_documents(conditions)),
        detail=adapter_detail,
        runtime=observed_runtime,
        unverified=None if unverified is None else unverified.model_dump(mode="json"),
    )


async def set_last_operation(tx: Transaction, member_id: str, operation_id: str) -> None:
    await tx.run(
        "UPDATE members SET last_operation_id = %(operation)s, updated_at = now() WHERE id = %(id)s",
        id=member_id,
        operation=operation_id,
    )


def _documents(resources: Sequence[Resource] | None) -> list[JsonObject] | None:
    return None if resources is None else [resource.model_dump(mode="json") for resource in resources]
