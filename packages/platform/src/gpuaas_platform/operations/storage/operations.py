"""Operations, their leases and their steps."""

from typing import Any, LiteralString

from gpuaas_platform.core.database import Row, Transaction, json_list

_SELECT = """
    SELECT o.*, p.tenant_id, o.lease_expires_at > now() AS lease_live, o.deadline < now() AS overdue,
           m.status AS member_status, m.component_key,
           r.status AS replacement_status,
           NOT EXISTS (SELECT 1 FROM operations later WHERE later.instance_id = o.instance_id
               AND later.number > o.number AND later.kind NOT IN ('resize', 'preflight')
               AND NOT (later.state = 'cancelled' AND later.attempt = 0)
               AND (later.kind = 'decommission' OR later.member_id IS NOT DISTINCT FROM o.member_id)) AS is_latest,
           CASE WHEN o.queued THEN ARRAY(SELECT b.id FROM operations b WHERE b.instance_id = o.instance_id
               AND b.number < o.number AND b.state IN ('pending', 'running') AND b.kind <> 'preflight'
               AND (b.member_id IS NULL OR o.member_id IS NULL
                    OR ARRAY[b.member_id, b.replacement_member_id] && ARRAY[o.member_id, o.replacement_member_id])
               ORDER BY b.number) ELSE '{}' END AS waits_for
    FROM operations o JOIN projects p ON p.id = o.project_id
    LEFT JOIN members m ON m.id = o.member_id LEFT JOIN members r ON r.id = o.replacement_member_id
"""


async def insert(
    tx: Transaction,
    id: str,
    instance: Row,
    member_id: str | None,
    kind: str,
    input: dict[str, Any],
    deadline_seconds: int,
    *,
    queued: bool = False,
    replacement_member_id: str | None = None,
    bulk_id: str | None = None,
    undo: dict[str, Any] | None = None,
) -> Row:
    row = await tx.one(
        """INSERT INTO operations (id, instance_id, member_id, project_id, app_slug, kind, input, state, queued,
                                   deadline, deadline_seconds, replacement_member_id, bulk_id, undo, requested_by,
                                   correlation_id)
           VALUES (%(id)s, %(instance)s, %(member)s, %(project)s, %(slug)s, %(kind)s, %(input)s, 'pending',
                   %(queued)s, now() + make_interval(secs => %(deadline)s), %(deadline)s, %(replacement)s,
                   %(bulk)s, %(undo)s, %(principal)s, %(correlation)s) RETURNING *""",
        id=id,
        instance=instance["id"],
        member=member_id,
        project=instance["project_id"],
        slug=instance["app_slug"],
        kind=kind,
        input=input,
        queued=queued,
        deadline=deadline_seconds,
        replacement=replacement_member_id,
        bulk=bulk_id,
        undo=undo,
        principal=tx.principal_id,
        correlation=tx.correlation_id,
    )
    assert row is not None
    return row


async def insert_together(tx: Transaction, instance: Row, operations: list[dict[str, Any]]) -> list[Row]:
    """Many of one instance at once, in their order: `id`, `member_id`, `kind`, `input`, `deadline_seconds`."""
    numbered = [{**operation, "place": place} for place, operation in enumerate(operations)]
    return await tx.all(
        """INSERT INTO operations (id, instance_id, member_id, project_id, app_slug, kind, input, state, queued,
                                   deadline, deadline_seconds, requested_by, correlation_id)
           SELECT r.id, %(instance)s, r.member_id, %(project)s, %(slug)s, r.kind, r.input, 'pending', false,
                  now() + make_interval(secs => r.deadline_seconds), r.deadline_seconds, %(principal)s,
                  %(correlation)s
           FROM jsonb_to_recordset(%(operations)s) AS r(place int, id text, member_id text, kind text, input jsonb,
                deadline_seconds int) ORDER BY r.place RETURNING *""",
        instance=instance["id"],
        project=instance["project_id"],
        slug=instance["app_slug"],
        operations=json_list(numbered),
        principal=tx.principal_id,
        correlation=tx.correlation_id,
    )


async def get(tx: Transaction, id: str) -> Row | None:
    return await tx.one(_SELECT + " WHERE o.id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> Row | None:
    await tx.one("SELECT 1 FROM operations WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def lock_failed(tx: Transaction, instance_id: str, kind: str) -> list[Row]:
    """Under the lock of the instance."""
    rows = await tx.all(
        "SELECT id FROM operations WHERE instance_id = %(instance)s AND kind = %(kind)s AND state = 'failed' "
        "ORDER BY number FOR UPDATE",
        instance=instance_id,
        kind=kind,
    )
    return await tx.all(_SELECT + " WHERE o.id = ANY(%(ids)s) ORDER BY o.number", ids=[row["id"] for row in rows])


async def list_matching(
    tx: Transaction,
    project_ids: list[str] | None,
    instance_id: str | None,
    member_id: str | None,
    state: str | None,
    app_slug: str | None,
    claimable: bool,
    after: str,
    limit: int,
) -> list[Row]:
    """With `claimable`: those that nobody holds and whose turn has come."""
    return await tx.all(
        _SELECT
        + """ WHERE o.id > %(after)s AND (%(projects)s::text[] IS NULL OR o.project_id = ANY(%(projects)s))
               AND (%(instance)s::text IS NULL OR o.instance_id = %(instance)s)
               AND (%(member)s::text IS NULL OR %(member)s IN (o.member_id, o.replacement_member_id))
               AND (%(state)s::text IS NULL OR o.state = %(state)s)
               AND (%(app)s::text IS NULL OR o.app_slug = %(app)s)
               AND (NOT %(claimable)s OR (o.state IN ('pending', 'running') AND NOT o.queued
                    AND NOT o.cancel_requested AND (o.state = 'pending' OR o.lease_expires_at < now())))
             ORDER BY o.id LIMIT %(limit)s""",
        projects=project_ids,
        instance=instance_id,
        member=member_id,
        state=state,
        app=app_slug,
        claimable=claimable,
        after=after,
        limit=limit,
    )


async def list_open(tx: Transaction, instance_id: str) -> list[Row]:
    return await tx.all(
        """SELECT * FROM operations WHERE instance_id = %(id)s AND state IN ('pending', 'running')
             AND kind <> 'preflight' ORDER BY number FOR UPDATE""",
        id=instance_id,
    )


async def list_queued(tx: Transaction, instance_id: str) -> list[Row]:
    return await tx.all(
        """SELECT * FROM operations WHERE instance_id = %(id)s AND queued AND state = 'pending'
           ORDER BY number FOR UPDATE""",
        id=instance_id,
    )


async def lock_open(tx: Transaction, ids: list[str]) -> list[Row]:
    """Those of them that are open and that nobody is just about to finish."""
    return await tx.all(
        """SELECT * FROM operations WHERE id = ANY(%(ids)s) AND state IN ('pending', 'running')
           ORDER BY id FOR UPDATE SKIP LOCKED""",
        ids=ids,
    )


async def all_succeeded(tx: Transaction, ids: list[str]) -> bool:
    row = await tx.one("SELECT bool_and(state = 'succeeded') AS all FROM operations WHERE id = ANY(%(ids)s)", ids=ids)
    return row is not None and bool(row["all"])


async def list_overdue(tx: Transaction) -> list[Row]:
    """Found without their locks: those of their instances come first. What waits in a queue is not overdue."""
    return await tx.all(
        """SELECT id, instance_id FROM operations WHERE state IN ('pending', 'running') AND NOT queued
             AND deadline < now() ORDER BY instance_id, number LIMIT 500"""
    )


async def list_abandoned(tx: Transaction) -> list[Row]:
    """Whose holder has gone silent, and nobody has noticed yet."""
    return await tx.all(
        """SELECT id, instance_id FROM operations WHERE state = 'running' AND lease_expires_at < now()
             AND NOT expiry_noticed ORDER BY instance_id, number LIMIT 500"""
    )


async def notice_expiry(tx: Transaction, id: str) -> Row:
    return await _update(tx, "expiry_noticed = true", id)


async def request_cancel(tx: Transaction, id: str) -> Row:
    return await _update(tx, "cancel_requested = true", id)


async def dequeue(tx: Transaction, id: str, undo: dict[str, Any] | None) -> Row:
    """Its turn has come, and its time begins."""
    changes = """queued = false, undo = %(undo)s,
                 deadline = now() + make_interval(secs => coalesce(deadline_seconds, 1800))"""
    return await _update(tx, changes, id, undo=undo)


async def _update(tx: Transaction, changes: LiteralString, id: str, **params: Any) -> Row:
    row = await tx.one(
        f"""UPDATE operations SET {changes}, revision = revision + 1, updated_at = now()
            WHERE id = %(id)s RETURNING *""",  # noqa: S608 - constants
        id=id,
        **params,
    )
    assert row is not None
    return row


async def claim(tx: Transaction, id: str, holder: str, account_id: str, lease_seconds: int) -> Row:
    row = await tx.one(
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
    assert row is not None
    return row


async def extend_lease(tx: Transaction, id: str, lease_seconds: int) -> Row:
    """Not a change of the resource: a heart-beat leaves revision and feed alone."""
    row = await tx.one(
        """UPDATE operations SET lease_expires_at = now() + make_interval(secs => %(lease)s) WHERE id = %(id)s
           RETURNING *""",
        id=id,
        lease=lease_seconds,
    )
    assert row is not None
    return row


async def drop_lease(tx: Transaction, id: str) -> Row:
    row = await tx.one(
        """UPDATE operations SET state = 'pending', lease_holder = NULL, lease_account_id = NULL,
               lease_expires_at = NULL, fencing_token = NULL, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )
    assert row is not None
    return row


async def finish(tx: Transaction, id: str, state: str, result: dict[str, Any], error: dict[str, Any] | None) -> Row:
    row = await tx.one(
        """UPDATE operations SET state = %(state)s, result = %(result)s, error = %(error)s, ended_at = now(),
               lease_holder = NULL, lease_account_id = NULL, lease_expires_at = NULL, fencing_token = NULL,
               queued = false, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        state=state,
        result=result,
        error=error,
    )
    assert row is not None
    return row


async def reopen(tx: Transaction, id: str, deadline_seconds: int) -> Row:
    row = await tx.one(
        """UPDATE operations SET state = 'pending', error = NULL, ended_at = NULL, result = '{}',
               cancel_requested = false, undo = NULL,
               deadline = now() + make_interval(secs => %(deadline)s), deadline_seconds = %(deadline)s,
               revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=id,
        deadline=deadline_seconds,
    )
    assert row is not None
    return row


async def report_step(
    tx: Transaction,
    operation: Row,
    key: str,
    title: str,
    status: str,
    message: str,
    evidence: dict[str, Any],
    commands: list[dict[str, Any]],
) -> Row:
    row = await tx.one(
        """WITH step AS (
               INSERT INTO operation_steps (operation_id, attempt, key, title, status, message, evidence, commands,
                                            ended_at)
               VALUES (%(id)s, %(attempt)s, %(key)s, %(title)s, %(status)s, %(message)s, %(evidence)s, %(commands)s,
                       CASE WHEN %(status)s = 'running' THEN NULL ELSE clock_timestamp() END)
               ON CONFLICT (operation_id, attempt, key) DO UPDATE SET status = excluded.status,
                   title = excluded.title, message = excluded.message, evidence = excluded.evidence,
                   commands = excluded.commands, ended_at = excluded.ended_at)
           UPDATE operations SET revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=operation["id"],
        attempt=operation["attempt"],
        key=key,
        title=title,
        status=status,
        message=message,
        evidence=evidence,
        commands=json_list(commands),
    )
    assert row is not None
    return row


async def list_steps(tx: Transaction, operation_ids: list[str]) -> list[Row]:
    return await tx.all(
        "SELECT * FROM operation_steps WHERE operation_id = ANY(%(ids)s) ORDER BY started_at, key",
        ids=operation_ids,
    )


async def list_machine_ids(tx: Transaction, operation: Row, primary_component: str) -> list[str]:
    """The machines of an operation: its member's and the primary component's, or all live ones."""
    rows = await tx.all(
        """SELECT DISTINCT allocation_id FROM members WHERE instance_id = %(instance)s AND status <> 'removed'
             AND (%(member)s::text IS NULL OR id IN (%(member)s, %(replacement)s) OR component_key = %(primary)s)
           ORDER BY allocation_id""",
        instance=operation["instance_id"],
        member=operation["member_id"],
        replacement=operation["replacement_member_id"],
        primary=primary_component,
    )
    return [row["allocation_id"] for row in rows]
