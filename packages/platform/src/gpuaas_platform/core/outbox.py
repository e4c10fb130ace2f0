"""The outbox of a transaction: changes for the feed, audit entries, the answer for an idempotency key, wake-ups.

It is gathered while the transaction works, and written at its end in one statement: each statement more would be one
more round trip under the locks that it holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg.types.json import Jsonb

# Rows are numbered, and inserted in that order: the sequence value of a change is taken here, after the row locks.
# Where a thing belongs is looked up row by row, by key: a join would read whole tables once they are small enough.
WRITE = """
    WITH told AS (SELECT * FROM jsonb_to_recordset(%(changes)s) AS r(number int, noun text, id text, event text,
                      message text, revision bigint, project text, tenant text, instance text, app text, member text,
                      operation text, correlation text)),
         written AS (
           INSERT INTO changes (noun, resource_id, event, message, revision, project_id, tenant_id, instance_id,
                                app_slug, correlation_id)
           SELECT t.noun, t.id, t.event, t.message, t.revision, t.project,
                  coalesce(t.tenant, (SELECT tenant_id FROM projects WHERE id = t.project)), t.instance,
                  coalesce(t.app, (SELECT app_slug FROM instances WHERE id = t.instance)), t.correlation
           FROM told t ORDER BY t.number),
         kept AS (
           INSERT INTO instance_events (instance_id, noun, resource_id, event, message, member_id, operation_id,
                                        principal_id, correlation_id)
           SELECT t.instance, t.noun, t.id, t.event, t.message, t.member, t.operation, %(principal)s,
                  t.correlation
           FROM told t WHERE t.instance IS NOT NULL ORDER BY t.number),
         audited AS (
           INSERT INTO audit_entries (id, chain, principal_id, action, target, outcome, project_id, correlation_id,
                                      fingerprint, detail, address, user_agent, service)
           SELECT a.id, coalesce(a.tenant, (SELECT tenant_id FROM projects WHERE id = a.project), 'platform'),
                  %(principal)s, a.action, a.target, a.outcome, a.project, a.correlation, a.fingerprint, a.detail,
                  a.address, a.user_agent, a.service
           FROM jsonb_to_recordset(%(audits)s) AS a(number int, id text, tenant text, action text, target text,
                outcome text, project text, fingerprint text, detail jsonb, correlation text, address text,
                user_agent text, service text) ORDER BY a.number),
         answered AS (
           INSERT INTO idempotency_keys (principal_id, key, fingerprint, status, body, rights)
           SELECT %(principal)s, %(key)s, %(fingerprint)s, %(status)s::int, %(body)s, %(rights)s::jsonb
           WHERE %(key)s::text IS NOT NULL)
    SELECT pg_notify(n.channel, n.payload)
    FROM jsonb_to_recordset(%(notices)s) AS n(channel text, payload text)
"""


@dataclass(slots=True)
class Outbox:
    changes: list[dict[str, Any]] = field(default_factory=list)
    audits: list[dict[str, Any]] = field(default_factory=list)
    notices: dict[tuple[str, str], None] = field(default_factory=dict)
    """Channels and payloads, each once."""
    answer: Mapping[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.changes or self.audits or self.notices or self.answer)

    def parameters(self) -> dict[str, Any]:
        answer = self.answer or {"key": None, "fingerprint": None, "status": None, "body": None, "rights": None}
        return {
            "changes": _numbered(self.changes),
            "audits": _numbered(self.audits),
            "notices": Jsonb([{"channel": channel, "payload": payload} for channel, payload in self.notices]),
            **answer,
        }


def _numbered(rows: list[dict[str, Any]]) -> Jsonb:
    return Jsonb([{**row, "number": number} for number, row in enumerate(rows)])
