"""SSH authorities: which keys there are, and which machines know of them. The keys themselves lie in OpenBao."""

from gpuaas_platform.access.records import AuthorityVersionRecord, KeyState, UninformedMachine
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.core.database import Transaction


async def list_all(tx: Transaction, owner_id: str) -> list[AuthorityVersionRecord]:
    """Oldest first, without those that are only being made."""
    return await tx.fetch_all(
        AuthorityVersionRecord,
        "SELECT * FROM ssh_authorities WHERE owner_id = %(owner)s AND state <> 'making' ORDER BY version",
        owner=owner_id,
    )


async def list_active(tx: Transaction, owner_id: str) -> list[AuthorityVersionRecord]:
    return await tx.fetch_all(
        AuthorityVersionRecord,
        "SELECT * FROM ssh_authorities WHERE owner_id = %(owner)s AND state = 'active' ORDER BY version",
        owner=owner_id,
    )


async def lock(tx: Transaction, owner_id: str) -> list[AuthorityVersionRecord]:
    """One who changes it at a time; all of its versions, also one that is being made."""
    await tx.run("SELECT pg_advisory_xact_lock(hashtextextended(%(owner)s, 3))", owner=owner_id)
    return await tx.fetch_all(
        AuthorityVersionRecord,
        "SELECT * FROM ssh_authorities WHERE owner_id = %(owner)s ORDER BY version",
        owner=owner_id,
    )


async def insert(
    tx: Transaction, owner_id: str, version: int, state: KeyState, public_key: str, fingerprint: str
) -> None:
    await tx.run(
        """INSERT INTO ssh_authorities (owner_id, version, state, public_key, fingerprint)
           VALUES (%(owner)s, %(version)s, %(state)s, %(key)s, %(fingerprint)s) ON CONFLICT DO NOTHING""",
        owner=owner_id,
        version=version,
        state=state,
        key=public_key,
        fingerprint=fingerprint,
    )


async def activate(tx: Transaction, owner_id: str, version: int, public_key: str, fingerprint: str) -> None:
    await tx.run(
        """UPDATE ssh_authorities SET state = 'active', public_key = %(key)s, fingerprint = %(fingerprint)s
           WHERE owner_id = %(owner)s AND version = %(version)s AND state = 'making'""",
        owner=owner_id,
        version=version,
        key=public_key,
        fingerprint=fingerprint,
    )


async def abandon(tx: Transaction, owner_id: str, version: int) -> None:
    """The next attempt finds the same place in OpenBao, and what was made there."""
    await tx.run(
        "DELETE FROM ssh_authorities WHERE owner_id = %(owner)s AND version = %(version)s AND state = 'making'",
        owner=owner_id,
        version=version,
    )


async def set_state(tx: Transaction, owner_id: str, version: int, state: KeyState) -> None:
    await tx.run(
        """UPDATE ssh_authorities SET state = %(state)s, retired_at = coalesce(retired_at, now())
           WHERE owner_id = %(owner)s AND version = %(version)s""",
        owner=owner_id,
        version=version,
        state=state,
    )


async def list_retiring(tx: Transaction) -> list[AuthorityVersionRecord]:
    return await tx.fetch_all(
        AuthorityVersionRecord,
        "SELECT * FROM ssh_authorities WHERE state = 'retiring' ORDER BY owner_id, version LIMIT 100",
    )


async def list_machines(tx: Transaction, owner_id: str) -> list[AllocationRecord]:
    """Those that have a sshd of the platform's making, locked in one order."""
    return await tx.fetch_all(
        AllocationRecord,
        """SELECT a.*, n.status AS node_status FROM allocations a LEFT JOIN nodes n ON n.id = a.node_id
           WHERE a.owner_id = %(owner)s AND a.status = 'active' AND a.shape->>'kind' <> 'external'
           ORDER BY a.id FOR UPDATE OF a""",
        owner=owner_id,
    )


async def list_waiting(tx: Transaction, owner_id: str, oldest: int, newest: int) -> list[UninformedMachine]:
    return await tx.fetch_all(
        UninformedMachine,
        """SELECT a.id, a.name, n.name AS node_name, n.status AS node_status
           FROM allocations a LEFT JOIN nodes n ON n.id = a.node_id
           WHERE a.owner_id = %(owner)s AND a.status = 'active' AND a.shape->>'kind' <> 'external'
             AND (a.authority_oldest, a.authority_newest) <> (%(oldest)s, %(newest)s) ORDER BY a.id""",
        owner=owner_id,
        oldest=oldest,
        newest=newest,
    )


async def set_certified(tx: Transaction, allocation_id: str, seconds: int) -> None:
    """Note that a machine was given a host certificate; the next one is due at half of its life."""
    await tx.run(
        """UPDATE allocations SET host_certificate_expires_at = now() + make_interval(secs => %(seconds)s),
               host_certificate_due_at = now() + make_interval(secs => %(seconds)s / 2.0)
           WHERE id = %(id)s""",
        id=allocation_id,
        seconds=seconds,
    )


async def list_due(tx: Transaction, again_seconds: float) -> list[AllocationRecord]:
    """List machines whose host certificate is to be renewed, locked. Each is listed again only some time later: its
    node may be away, or fail. What waits for a node already is not asked for twice."""
    return await tx.fetch_all(
        AllocationRecord,
        """UPDATE allocations SET host_certificate_due_at = now() + make_interval(secs => %(seconds)s)
           WHERE id IN (
               SELECT a.id FROM allocations a
               WHERE a.status = 'active' AND a.node_id IS NOT NULL AND a.host_certificate_due_at <= now()
                 AND NOT EXISTS (SELECT 1 FROM node_tasks t WHERE t.allocation_id = a.id AND t.state = 'queued'
                                 AND t.spec->>'kind' = 'renew_trust')
               ORDER BY a.id LIMIT 50 FOR UPDATE SKIP LOCKED)
           RETURNING *""",
        seconds=again_seconds,
    )


async def set_known(tx: Transaction, allocation_id: str, oldest: int, newest: int) -> None:
    """Note the versions that a machine trusts: from the oldest to the newest."""
    await tx.run(
        """UPDATE allocations SET authority_oldest = %(oldest)s, authority_newest = %(newest)s
           WHERE id = %(id)s""",
        id=allocation_id,
        oldest=oldest,
        newest=newest,
    )
