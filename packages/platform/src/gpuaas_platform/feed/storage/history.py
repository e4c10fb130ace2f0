"""Events of instances, requests, and everything that carries one correlation id."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpuaas_platform.audit.records import AuditEntryRecord
from gpuaas_platform.core.database import Transaction, json_list
from gpuaas_platform.feed.records import EventFilter, InstanceEventRecord, RequestLogRecord, SilentMachine, TracedEvent
from gpuaas_platform.instances.storage.instances import WELL_SINCE


async def list_events(
    tx: Transaction, instance_id: str, only: EventFilter, after: int | None, limit: int, *, newest_first: bool
) -> list[InstanceEventRecord]:
    """From the beginning, or from the end backwards. What is about a member includes its operations."""
    return await tx.fetch_all(
        InstanceEventRecord,
        """SELECT * FROM instance_events WHERE instance_id = %(instance)s
             AND (%(after)s::bigint IS NULL
                  OR CASE WHEN %(newest_first)s THEN seq < %(after)s ELSE seq > %(after)s END)
             AND (%(member_id)s::text IS NULL OR member_id = %(member_id)s)
             AND (%(operation_id)s::text IS NULL OR operation_id = %(operation_id)s)
             AND (%(noun)s::text IS NULL OR noun = %(noun)s)
             AND (%(event)s::text IS NULL OR starts_with(event, %(event)s))
             AND (%(since)s::timestamptz IS NULL OR at >= %(since)s)
             AND (%(until)s::timestamptz IS NULL OR at < %(until)s)
           ORDER BY CASE WHEN %(newest_first)s THEN -seq ELSE seq END LIMIT %(limit)s""",
        instance=instance_id,
        after=after,
        limit=limit,
        newest_first=newest_first,
        **asdict(only),
    )


async def sweep(tx: Transaction, event_days: int, request_days: int) -> None:
    await tx.run("DELETE FROM instance_events WHERE at < now() - make_interval(days => %(days)s)", days=event_days)
    await tx.run("DELETE FROM request_records WHERE at < now() - make_interval(days => %(days)s)", days=request_days)


async def insert_requests(tx: Transaction, records: Sequence[dict[str, Any]]) -> None:
    await tx.run(
        """INSERT INTO request_records (at, method, route, status, principal_id, duration_ms, correlation_id,
                                        tenant_id, project_id)
           SELECT r.at, r.method, r.route, r.status, r.principal_id, r.duration_ms, r.correlation_id,
                  coalesce(r.tenant_id, (SELECT tenant_id FROM projects p WHERE p.id = r.project_id)), r.project_id
           FROM jsonb_to_recordset(%(records)s) AS r(at timestamptz, method text, route text, status int,
               principal_id text, duration_ms real, correlation_id text, tenant_id text, project_id text)""",
        records=json_list(list(records)),
    )


# By their correlation id


async def list_requests(tx: Transaction, correlation_id: str, limit: int) -> list[RequestLogRecord]:
    return await tx.fetch_all(
        RequestLogRecord,
        "SELECT * FROM request_records WHERE correlation_id = %(id)s ORDER BY at, seq LIMIT %(limit)s",
        id=correlation_id,
        limit=limit,
    )


async def list_audit(tx: Transaction, correlation_id: str, limit: int) -> list[AuditEntryRecord]:
    return await tx.fetch_all(
        AuditEntryRecord,
        "SELECT * FROM audit_entries WHERE correlation_id = %(id)s ORDER BY at, id LIMIT %(limit)s",
        id=correlation_id,
        limit=limit,
    )


async def list_operation_ids(tx: Transaction, correlation_id: str, limit: int) -> list[str]:
    rows = await tx.all(
        "SELECT id FROM operations WHERE correlation_id = %(id)s ORDER BY id LIMIT %(limit)s",
        id=correlation_id,
        limit=limit,
    )
    return [row["id"] for row in rows]


async def list_traced_events(tx: Transaction, correlation_id: str, limit: int) -> list[TracedEvent]:
    """Of instances, from their history; of everything else, as long as the feed keeps it."""
    return await tx.fetch_all(
        TracedEvent,
        """SELECT e.at, e.noun, e.resource_id, e.event, e.message, e.member_id, e.operation_id, e.principal_id,
                  e.correlation_id, p.tenant_id, i.project_id, i.app_slug
           FROM instance_events e JOIN instances i ON i.id = e.instance_id JOIN projects p ON p.id = i.project_id
           WHERE e.correlation_id = %(id)s
           UNION ALL
           SELECT at, noun, resource_id, event, message, NULL, NULL, '', correlation_id, tenant_id, project_id,
                  app_slug
           FROM changes WHERE correlation_id = %(id)s AND instance_id IS NULL
           ORDER BY at LIMIT %(limit)s""",
        id=correlation_id,
        limit=limit,
    )


# For explaining


async def find_operation(tx: Transaction, instance_id: str) -> str | None:
    """The one to look at: failed with nothing after it and its target not well, else under way, else the newest. Of
    those that wait for a preflight, or ended with it, the deploy speaks for all."""
    row = await tx.one(
        f"""SELECT o.id FROM operations o LEFT JOIN members m ON m.id = o.member_id
           WHERE o.instance_id = %(instance)s AND o.kind NOT IN ('resize', 'preflight')
           ORDER BY (o.state = 'failed'
                    AND {WELL_SINCE} IS NOT TRUE AND NOT EXISTS (
                        SELECT 1 FROM operations later WHERE later.instance_id = o.instance_id
                          AND later.number > o.number AND later.kind NOT IN ('resize', 'preflight')
                          AND (later.kind = 'decommission' OR later.member_id IS NOT DISTINCT FROM o.member_id))) DESC,
                    (o.state IN ('pending', 'running')) DESC, (o.state = 'running') DESC,
                    (o.kind = 'deploy' AND o.gate_preflight_id IS NOT NULL AND o.attempt = 0) DESC,
                    o.number DESC LIMIT 1""",  # noqa: S608 - a constant
        instance=instance_id,
    )
    return None if row is None else str(row["id"])


async def find_unwell_member(tx: Transaction, instance_id: str) -> str | None:
    """The member that is worst off: failed, reported as unwell, or not known to be well."""
    row = await tx.one(
        """SELECT m.id FROM members m, LATERAL (
               SELECT coalesce(bool_or((c->>'type', c->>'status') IN (('Degraded', 'true'), ('Ready', 'false'))), false)
                          AS unwell,
                      coalesce(bool_or(c->>'type' IN ('Degraded', 'Ready') AND c->>'status' = 'unknown'), false)
                          AS unknown
               FROM jsonb_array_elements(m.conditions) c) said
           WHERE m.instance_id = %(instance)s AND m.status <> 'removed'
             AND (m.status = 'failed' OR said.unwell OR said.unknown)
           ORDER BY (m.status = 'failed') DESC, said.unwell DESC, m.id LIMIT 1""",
        instance=instance_id,
    )
    return None if row is None else str(row["id"])


async def find_first_member(tx: Transaction, instance_id: str) -> str | None:
    """The first that is not ready, else the first of all."""
    row = await tx.one(
        """SELECT id FROM members WHERE instance_id = %(instance)s AND status <> 'removed'
           ORDER BY (status <> 'ready') DESC, id LIMIT 1""",
        instance=instance_id,
    )
    return None if row is None else str(row["id"])


async def count_members(tx: Transaction, instance_id: str) -> dict[str, int]:
    rows = await tx.all(
        """SELECT status, count(*) AS number FROM members WHERE instance_id = %(instance)s AND status <> 'removed'
           GROUP BY status ORDER BY status""",
        instance=instance_id,
    )
    return {row["status"]: row["number"] for row in rows}


async def list_silent_machines(tx: Transaction, instance_id: str, limit: int) -> list[SilentMachine]:
    """Machines of live members that are not there: not active, or on a node that is not connected."""
    return await tx.fetch_all(
        SilentMachine,
        """SELECT DISTINCT a.id, a.name, a.status, n.name AS node_name, n.status AS node_status
           FROM members m JOIN allocations a ON a.id = m.allocation_id LEFT JOIN nodes n ON n.id = a.node_id
           WHERE m.instance_id = %(instance)s AND m.status <> 'removed'
             AND (a.status <> 'active' OR n.status = 'offline') ORDER BY a.name LIMIT %(limit)s""",
        instance=instance_id,
        limit=limit,
    )
