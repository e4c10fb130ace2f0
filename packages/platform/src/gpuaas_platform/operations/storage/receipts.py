"""Teardown receipts, signed and still to be signed."""

from datetime import datetime
from enum import StrEnum

from gpuaas_contract import ids
from gpuaas_contract.base import JsonObject
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.operations.records import (
    PlatformCheck,
    ReceiptMember,
    ReceiptOwner,
    ReceiptRecord,
    UnsignedReceipt,
)

ISSUED = "receipt.issue"
AT_ONCE = 20


async def get_owner(tx: Transaction, instance_id: str) -> ReceiptOwner:
    return await tx.fetch(
        ReceiptOwner,
        """SELECT i.id, i.name, i.app_slug, v.version AS app_version, p.id AS project_id, p.name AS project_name,
                  t.id AS tenant_id, t.name AS tenant_name, i.unverified, i.created_at, i.ended_at
           FROM instances i JOIN app_versions v ON v.id = i.app_version_id JOIN projects p ON p.id = i.project_id
                JOIN tenants t ON t.id = p.tenant_id WHERE i.id = %(id)s""",
        id=instance_id,
    )


async def list_members(tx: Transaction, instance_id: str, member_id: str | None = None) -> list[ReceiptMember]:
    return await tx.fetch_all(
        ReceiptMember,
        """SELECT m.id, m.component_key, m.allocation_id, m.last_operation_id, m.unverified,
                  EXISTS (SELECT 1 FROM operations o WHERE o.instance_id = m.instance_id AND o.member_id = m.id
                          AND o.kind IN ('remove', 'replace') AND o.state = 'succeeded') AS removed_before
           FROM members m WHERE m.instance_id = %(id)s AND (%(member)s::text IS NULL OR m.id = %(member)s)
           ORDER BY m.id""",
        id=instance_id,
        member=member_id,
    )


_OF_INSTANCE = """
    ('secrets', 'secrets of the instance that can still be delivered',
     (SELECT string_agg(name, ', ' ORDER BY name) FROM secrets
      WHERE instance_id = %(id)s AND deleted_at IS NULL), false),
    ('access', 'access to machines that was given for the instance and has not ended',
     (SELECT string_agg(g.id, ', ' ORDER BY g.id) FROM access_grants g
      LEFT JOIN operations o ON o.id = g.operation_id
      WHERE (g.reconciled_instance_id = %(id)s OR o.instance_id = %(id)s
             OR g.member_id IN (SELECT id FROM members WHERE instance_id = %(id)s))
        AND g.ended_at IS NULL AND g.expires_at > now()), false),
"""
# A volume is its project's: whether the app left something on it is not known here. What differed in a firewall is not
# told: it may be about other tenants.
_OF_MACHINES = """
    ('volumes', 'volumes attached to machines of the instance, which nobody looked into',
     (SELECT string_agg(DISTINCT v.name || ' at ' || a.path, ', ') FROM volume_attachments a
      JOIN volumes v ON v.id = a.volume_id WHERE a.allocation_id = ANY(%(machines)s)), true),
    ('accounts', 'accounts of people whose removal from machines of the instance is not confirmed',
     (SELECT string_agg(g.login || ' on ' || g.allocation_id, ', ' ORDER BY g.id) FROM grants g
      WHERE g.allocation_id = ANY(%(machines)s) AND g.status = 'revoking'), true),
    ('firewall', 'hosts of the machines whose firewall or network was not as wanted since the removal was asked for',
     (SELECT string_agg(n.id, ', ' ORDER BY n.id) FROM nodes n
      WHERE n.id IN (SELECT node_id FROM allocations WHERE id = ANY(%(machines)s))
        AND (n.conditions <> '[]' OR EXISTS (
             SELECT 1 FROM changes c WHERE c.noun = 'node' AND c.event = 'impaired' AND c.resource_id = n.id
               AND c.at >= %(since)s))), true)
"""


_CHECKS = """
    SELECT check_ AS check, question, coalesce(names, 'nothing') AS found,
           CASE WHEN names IS NULL THEN true WHEN unknown THEN NULL ELSE false END AS ok FROM found
"""
_WHOLE = f"WITH found(check_, question, names, unknown) AS (VALUES {_OF_INSTANCE} {_OF_MACHINES}) {_CHECKS}"
_MEMBER = f"WITH found(check_, question, names, unknown) AS (VALUES {_OF_MACHINES}) {_CHECKS}"


async def list_platform_checks(
    tx: Transaction, instance_id: str, machines: list[str], since: datetime
) -> list[PlatformCheck]:
    """List what is still there of an instance that has ended, and what the platform cannot tell of its machines."""
    return await tx.fetch_all(PlatformCheck, _WHOLE, id=instance_id, machines=machines, since=since)


async def list_machine_checks(tx: Transaction, machines: list[str], since: datetime) -> list[PlatformCheck]:
    """List what the platform cannot tell of machines whose instance lives on, with its secrets and its access."""
    return await tx.fetch_all(PlatformCheck, _MEMBER, machines=machines, since=since)


class Subject(StrEnum):
    """The table of a receipt, by what it is about."""

    INSTANCE = "receipts"
    MEMBER = "member_receipts"

    @classmethod
    def of(cls, id: str) -> "Subject":
        return cls.MEMBER if ids.is_id(id, ids.MEMBER) else cls.INSTANCE

    @property
    def key(self) -> str:
        return "instance_id" if self is Subject.INSTANCE else "member_id"


async def insert(tx: Transaction, id: str, document: JsonObject) -> bool:
    """False where it has one already: the first one stays."""
    subject = Subject.of(id)
    done = await tx.run(
        f"""INSERT INTO {subject} ({subject.key}, document, correlation_id)
           VALUES (%(id)s, %(document)s, %(correlation)s) ON CONFLICT DO NOTHING""",  # noqa: S608 - constants
        id=id,
        document=document,
        correlation=tx.correlation_id,
    )
    return done == 1


async def get(tx: Transaction, id: str) -> ReceiptRecord | None:
    """By the id of an instance or of a member."""
    return await tx.find(
        ReceiptRecord,
        """SELECT instance_id AS subject_id, document, correlation_id, key_id, signature, created_at, signed_at
           FROM receipts WHERE instance_id = %(id)s
           UNION ALL
           SELECT member_id, document, correlation_id, key_id, signature, created_at, signed_at
           FROM member_receipts WHERE member_id = %(id)s""",
        id=id,
    )


async def list_to_sign(tx: Transaction) -> list[UnsignedReceipt]:
    """Those whose audit entry is sealed below a checkpoint, oldest first."""
    return await tx.fetch_all(
        UnsignedReceipt,
        """SELECT r.subject_id, r.document, e.chain, e.id AS entry_id, e.position, b.number AS batch
           FROM (SELECT instance_id AS subject_id, document, correlation_id, created_at FROM receipts
                 WHERE signature IS NULL
                 UNION ALL
                 SELECT member_id, document, correlation_id, created_at FROM member_receipts
                 WHERE signature IS NULL) r
           JOIN audit_entries e ON e.correlation_id = r.correlation_id AND e.action = %(action)s
                AND e.target = r.subject_id
           JOIN audit_batches b ON b.chain = e.chain AND b.number = e.batch AND b.checkpointed
           ORDER BY r.created_at LIMIT %(limit)s""",
        action=ISSUED,
        limit=AT_ONCE,
    )


async def finish(tx: Transaction, id: str, document: JsonObject, key_id: str, signature: str) -> bool:
    """False where another process was faster: its signature stays."""
    subject = Subject.of(id)
    done = await tx.run(
        f"""UPDATE {subject} SET document = %(document)s, key_id = %(key)s, signature = %(signature)s, signed_at = now()
           WHERE {subject.key} = %(id)s AND signature IS NULL""",  # noqa: S608 - constants
        id=id,
        document=document,
        key=key_id,
        signature=signature,
    )
    return done == 1
