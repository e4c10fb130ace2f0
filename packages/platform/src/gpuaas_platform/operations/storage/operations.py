"""Operations, their leases and their steps."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any, LiteralString

from gpuaas_contract.base import JsonObject
from gpuaas_contract.operations import OperationError, StepReport
from gpuaas_platform.core.database import Transaction, json_list
from gpuaas_platform.instances.records import InstanceRecord
from gpuaas_platform.operations.records import (
    NewOperation,
    OperationFilter,
    OperationRecord,
    OperationReference,
    OperationView,
    PreviousDesire,
    StepRecord,
)

_SELECT = """
    SELECT o.*, p.tenant_id, o.lease_expires_at > now() AS lease_live, o.deadline < now() AS overdue,
           m.status AS member_status, m.component_key,
           coalesce(i.operator_account_id, CASE WHEN f.instance_id IS NULL THEN f.request->>'operator_account_id' END)
               AS operator_account_id,
           f.instance_id AS preflight_instance_id,
           r.status AS replacement_status,
           NOT EXISTS (SELECT 1 FROM operations later WHERE later.instance_id = o.instance_id
               AND later.number > o.number AND later.kind NOT IN ('resize', 'preflight')
               AND NOT (later.state = 'cancelled' AND later.attempt = 0)
               AND (later.kind = 'decommission' OR later.member_id IS NOT DISTINCT FROM o.member_id)) AS is_latest,
           CASE WHEN o.queued AND o.gate_preflight_id IS NOT NULL
               THEN ARRAY(SELECT g.id FROM operations g WHERE g.preflight_id = o.gate_preflight_id)
               WHEN o.queued THEN ARRAY(SELECT b.id FROM operations b WHERE b.instance_id = o.instance_id
               AND b.number < o.number AND b.state IN ('pending', 'running') AND b.kind <> 'preflight'
               AND (b.member_id IS NULL OR o.member_id IS NULL
                    OR ARRAY[b.member_id, b.replacement_member_id] && ARRAY[o.member_id, o.replacement_member_id])
               ORDER BY b.number) ELSE '{}' END AS waits_for
    FROM operations o JOIN projects p ON p.id = o.project_id
    LEFT JOIN members m ON m.id = o.member_id LEFT JOIN members r ON r.id = o.replacement_member_id
    LEFT JOIN preflights f ON f.id = o.preflight_id
    LEFT JOIN instances i ON i.id = coalesce(o.instance_id, f.instance_id)
"""


async def insert(tx: Transaction, instance: InstanceRecord, operation: NewOperation) -> OperationRecord:
    return await tx.fetch(
        OperationRecord,
        """INSERT INTO operations (id, instance_id, member_id, project_id, app_slug, kind, input, state, queued,
                                   deadline, deadline_seconds, replacement_member_id, bulk_id, undo, requested_by,
                                   correlation_id)
           VALUES (%(id)s, %(instance)s, %(member)s, %(project)s, %(slug)s, %(kind)s, %(input)s, 'pending',
                   %(queued)s, now() + make_interval(secs => %(deadline)s), %(deadline)s, %(replacement)s,
                   %(bulk)s, %(undo)s, %(principal)s, %(correlation)s) RETURNING *""",
        id=operation.id,
        instance=instance.id,
        member=operation.member_id,
        project=instance.project_id,
        slug=instance.app_slug,
        kind=operation.kind,
        input=operation.input,
        queued=operation.queued,
        deadline=operation.deadline_seconds,
        replacement=operation.replacement_member_id,
        bulk=operation.bulk_id,
        undo=_document(operation.undo),
        principal=tx.principal_id,
        correlation=tx.correlation_id,
    )


def _document(undo: PreviousDesire | None) -> JsonObject | None:
    return None if undo is None else asdict(undo)


async def insert_together(
    tx: Transaction, instance: InstanceRecord, operations: list[NewOperation]
) -> list[OperationRecord]:
    """Insert many operations of one instance at once, in their order; each is in no bulk, and begins at once or after
    its preflight."""
    assert not any(each.undo or each.bulk_id or each.replacement_member_id for each in operations)
    numbered = [{**asdict(operation), "place": place} for place, operation in enumerate(operations)]
    return await tx.fetch_all(
        OperationRecord,
        """INSERT INTO operations (id, instance_id, member_id, project_id, app_slug, kind, input, state, queued,
                                   gate_preflight_id, deadline, deadline_seconds, requested_by, correlation_id)
           SELECT r.id, %(instance)s, r.member_id, %(project)s, %(slug)s, r.kind, r.input, 'pending', r.queued,
                  r.gate_preflight_id, now() + make_interval(secs => r.deadline_seconds), r.deadline_seconds,
                  %(principal)s, %(correlation)s
           FROM jsonb_to_recordset(%(operations)s) AS r(place int, id text, member_id text, kind text, input jsonb,
                deadline_seconds int, queued bool, gate_preflight_id text) ORDER BY r.place RETURNING *""",
        instance=instance.id,
        project=instance.project_id,
        slug=instance.app_slug,
        operations=json_list(numbered),
        principal=tx.principal_id,
        correlation=tx.correlation_id,
    )


async def get(tx: Transaction, id: str) -> OperationView | None:
    return await tx.find(OperationView, _SELECT + " WHERE o.id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> OperationView | None:
    await tx.one("SELECT 1 FROM operations WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def lock_failed(tx: Transaction, instance_id: str, kind: str) -> list[OperationView]:
    """Lock the failed operations of a kind. The caller holds the lock of the instance."""
    rows = await tx.all(
        "SELECT id FROM operations WHERE instance_id = %(instance)s AND kind = %(kind)s AND state = 'failed' "
        "ORDER BY number FOR UPDATE",
        instance=instance_id,
        kind=kind,
    )
    ids = [row["id"] for row in rows]
    return await tx.fetch_all(OperationView, _SELECT + " WHERE o.id = ANY(%(ids)s) ORDER BY o.number", ids=ids)


async def list_matching(tx: Transaction, only: OperationFilter, after: str, limit: int) -> list[OperationView]:
    return await tx.fetch_all(
        OperationView,
        _SELECT
        + """ WHERE o.id > %(after)s AND (%(projects)s::text[] IS NULL OR o.project_id = ANY(%(projects)s))
               AND (%(instance)s::text IS NULL OR o.instance_id = %(instance)s)
               AND (%(member)s::text IS NULL OR %(member)s IN (o.member_id, o.replacement_member_id))
               AND (%(state)s::text IS NULL OR o.state = %(state)s)
               AND (%(app)s::text IS NULL OR o.app_slug = %(app)s)
               AND (%(claimer)s::text IS NULL OR (o.state IN ('pending', 'running') AND NOT o.queued
                    AND NOT o.cancel_requested AND (o.state = 'pending' OR o.lease_expires_at < now())
                    AND coalesce(i.operator_account_id, CASE WHEN f.instance_id IS NULL
                                 THEN f.request->>'operator_account_id' END, %(claimer)s) = %(claimer)s))
             ORDER BY o.id LIMIT %(limit)s""",
        projects=only.project_ids,
        instance=only.instance_id,
        member=only.member_id,
        state=only.state,
        app=only.app_slug,
        claimer=only.claimable_by,
        after=after,
        limit=limit,
    )


async def get_worked_on(tx: Transaction, instance_id: str) -> OperationReference | None:
    """Find an operation on the instance, or a preflight of it, whose lease somebody holds now."""
    return await tx.find(
        OperationReference,
        """SELECT o.id, o.instance_id FROM operations o LEFT JOIN preflights f ON f.id = o.preflight_id
           WHERE coalesce(o.instance_id, f.instance_id) = %(id)s AND o.state = 'running'
             AND o.lease_expires_at > now() ORDER BY o.number LIMIT 1""",
        id=instance_id,
    )


async def list_open(tx: Transaction, instance_id: str) -> list[OperationRecord]:
    return await tx.fetch_all(
        OperationRecord,
        """SELECT * FROM operations WHERE instance_id = %(id)s AND state IN ('pending', 'running')
             AND kind <> 'preflight' ORDER BY number FOR UPDATE""",
        id=instance_id,
    )


async def list_queued(tx: Transaction, instance_id: str) -> list[OperationRecord]:
    """List those that wait for other operations, and not for a preflight."""
    return await tx.fetch_all(
        OperationRecord,
        """SELECT * FROM operations WHERE instance_id = %(id)s AND queued AND state = 'pending'
             AND gate_preflight_id IS NULL ORDER BY number FOR UPDATE""",
        id=instance_id,
    )


async def lock_gated(tx: Transaction, instance_id: str, preflight_id: str) -> list[OperationRecord]:
    """Lock those that wait for this preflight."""
    return await tx.fetch_all(
        OperationRecord,
        """SELECT * FROM operations WHERE instance_id = %(id)s AND queued AND state = 'pending'
             AND gate_preflight_id = %(preflight)s ORDER BY number FOR UPDATE""",
        id=instance_id,
        preflight=preflight_id,
    )


async def open_gate(tx: Transaction, ids: list[str]) -> list[OperationRecord]:
    """Let them begin: their time counts from now."""
    return await tx.fetch_all(
        OperationRecord,
        """UPDATE operations SET queued = false,
               deadline = now() + make_interval(secs => coalesce(deadline_seconds, 1800)),
               revision = revision + 1, updated_at = now() WHERE id = ANY(%(ids)s) RETURNING *""",
        ids=ids,
    )


async def lock_open(tx: Transaction, ids: list[str]) -> list[OperationRecord]:
    """Lock those of them that are open and that nobody is just about to finish."""
    return await tx.fetch_all(
        OperationRecord,
        """SELECT * FROM operations WHERE id = ANY(%(ids)s) AND state IN ('pending', 'running')
           ORDER BY id FOR UPDATE SKIP LOCKED""",
        ids=ids,
    )


async def all_succeeded(tx: Transaction, ids: list[str]) -> bool:
    row = await tx.one("SELECT bool_and(state = 'succeeded') AS all FROM operations WHERE id = ANY(%(ids)s)", ids=ids)
    return row is not None and bool(row["all"])


async def list_overdue(tx: Transaction) -> list[OperationReference]:
    """Find them without their locks: those of their instances come first. What waits in a queue is not overdue."""
    return await tx.fetch_all(
        OperationReference,
        """SELECT id, instance_id FROM operations WHERE state IN ('pending', 'running') AND NOT queued
             AND deadline < now() ORDER BY instance_id, number LIMIT 500""",
    )


async def list_abandoned(tx: Transaction) -> list[OperationReference]:
    """Find those whose holder has gone silent, and nobody has noticed yet."""
    return await tx.fetch_all(
        OperationReference,
        """SELECT id, instance_id FROM operations WHERE state = 'running' AND lease_expires_at < now()
             AND NOT expiry_noticed ORDER BY instance_id, number LIMIT 500""",
    )


async def notice_expiry(tx: Transaction, id: str) -> OperationRecord:
    return await _update(tx, "expiry_noticed = true", id)


async def request_cancel(tx: Transaction, id: str) -> OperationRecord:
    return await _update(tx, "cancel_requested = true", id)


async def dequeue(tx: Transaction, id: str, undo: PreviousDesire | None) -> OperationRecord:
    """Begin its turn, and its time."""
    changes = """queued = false, undo = %(undo)s,
                 deadline = now() + make_interval(secs => coalesce(deadline_seconds, 1800))"""
    return await _update(tx, changes, id, undo=_document(undo))


async def _update(tx: Transaction, changes: LiteralString, id: str, **params: Any) -> OperationRecord:
    return await tx.fetch(
        OperationRecord,
        f"""UPDATE operations SET {changes}, revision = revision + 1, updated_at = now()
            WHERE id = %(id)s RETURNING *""",  # noqa: S608 - constants
        id=id,
        **params,
    )


async def holds_lease(tx: Transaction, account_id: str, app_slug: str, kinds: Collection[str]) -> bool:
    """Whether the account works on an operation of the app that is of one of these kinds."""
    row = await tx.one(
        """SELECT 1 FROM operations WHERE lease_account_id = %(account)s AND app_slug = %(slug)s
             AND kind = ANY(%(kinds)s::text[]) AND state = 'running' AND lease_expires_at > now() LIMIT 1""",
        account=account_id,
        slug=app_slug,
        kinds=sorted(kinds),
    )
    return row is not None


async def claim(tx: Transaction, id: str, holder: str, account_id: str, lease_seconds: int) -> OperationRecord:
    return await tx.fetch(
        OperationRecord,
        """UPDATE operations SET state = 'running', attempt = attempt + 1, lease_holder = %(holder)s,
               lease_account_id = %(account)s, lease_expires_at = now() + make_interval(secs => %(lease)s),
               expiry_noticed = false,
               fencing_token = nextval('fencing_token'), started_at = coalesce(started_at, now()),
               revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        holder=holder,
        account=account_id,
        lease=lease_seconds,
    )


async def extend_lease(tx: Transaction, id: str, lease_seconds: int) -> OperationRecord:
    """Not a change of the resource: a heart-beat leaves revision and feed alone."""
    return await tx.fetch(
        OperationRecord,
        """UPDATE operations SET lease_expires_at = now() + make_interval(secs => %(lease)s) WHERE id = %(id)s
           RETURNING *""",
        id=id,
        lease=lease_seconds,
    )


async def drop_lease(tx: Transaction, id: str) -> OperationRecord:
    return await tx.fetch(
        OperationRecord,
        """UPDATE operations SET state = 'pending', lease_holder = NULL, lease_account_id = NULL,
               lease_expires_at = NULL, fencing_token = NULL, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )


async def finish(
    tx: Transaction, id: str, state: str, result: JsonObject, error: OperationError | None
) -> OperationRecord:
    return await tx.fetch(
        OperationRecord,
        """UPDATE operations SET state = %(state)s, result = %(result)s, error = %(error)s, ended_at = now(),
               lease_holder = NULL, lease_account_id = NULL, lease_expires_at = NULL, fencing_token = NULL,
               queued = false, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        state=state,
        result=result,
        error=None if error is None else error.model_dump(mode="json"),
    )


async def reopen(
    tx: Transaction, id: str, deadline_seconds: int, gate_preflight_id: str | None = None
) -> OperationRecord:
    """Let it run again; with a preflight, after that."""
    return await tx.fetch(
        OperationRecord,
        """UPDATE operations SET state = 'pending', error = NULL, ended_at = NULL, result = '{}',
               cancel_requested = false, undo = NULL, queued = %(gate)s::text IS NOT NULL,
               gate_preflight_id = coalesce(%(gate)s, gate_preflight_id),
               deadline = now() + make_interval(secs => %(deadline)s), deadline_seconds = %(deadline)s,
               revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=id,
        deadline=deadline_seconds,
        gate=gate_preflight_id,
    )


async def report_step(
    tx: Transaction, operation: OperationRecord, report: StepReport, *, attempt: int | None = None
) -> OperationRecord:
    """Of its present attempt, where none is named."""
    return await tx.fetch(
        OperationRecord,
        """WITH step AS (
               INSERT INTO operation_steps (operation_id, attempt, key, title, status, message, evidence, commands,
                                            ended_at)
               VALUES (%(id)s, %(attempt)s, %(key)s, %(title)s, %(status)s, %(message)s, %(evidence)s, %(commands)s,
                       CASE WHEN %(status)s = 'running' THEN NULL ELSE clock_timestamp() END)
               ON CONFLICT (operation_id, attempt, key) DO UPDATE SET status = excluded.status,
                   title = excluded.title, message = excluded.message, evidence = excluded.evidence,
                   commands = excluded.commands, ended_at = excluded.ended_at)
           UPDATE operations SET revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=operation.id,
        attempt=operation.attempt if attempt is None else attempt,
        key=report.key,
        title=report.title,
        status=report.status,
        message=report.message,
        evidence=report.evidence,
        commands=json_list([command.model_dump(mode="json") for command in report.commands]),
    )


async def list_steps(tx: Transaction, operation_ids: list[str]) -> list[StepRecord]:
    return await tx.fetch_all(
        StepRecord,
        "SELECT * FROM operation_steps WHERE operation_id = ANY(%(ids)s) ORDER BY started_at, key",
        ids=operation_ids,
    )


async def list_machine_ids(tx: Transaction, operation: OperationRecord, primary_component: str) -> list[str]:
    """List the machines of an operation: its member's and the primary component's, or all live ones."""
    rows = await tx.all(
        """SELECT DISTINCT allocation_id FROM members WHERE instance_id = %(instance)s AND status <> 'removed'
             AND (%(member)s::text IS NULL OR id IN (%(member)s, %(replacement)s) OR component_key = %(primary)s)
           ORDER BY allocation_id""",
        instance=operation.instance_id,
        member=operation.member_id,
        replacement=operation.replacement_member_id,
        primary=primary_component,
    )
    return [row["allocation_id"] for row in rows]
