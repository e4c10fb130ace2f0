"""The people of instances: who may use one now, by the tables that say so, and who was told to the machines."""

from collections.abc import Sequence
from typing import LiteralString

from gpuaas_contract.people import LEAVING_SECONDS
from gpuaas_platform.access.records import (
    GrantView,
    MachineGroupRecord,
    PeopledInstance,
    PersonRecord,
    UnixGroupRecord,
    WantedEntry,
    WantedPerson,
)
from gpuaas_platform.core.database import Transaction

# `instance` selects one instance, or all where it is NULL. An instance without an entrance has no people.
_WANTED: LiteralString = """
    WITH entrances AS (
           SELECT i.id AS instance_id, i.project_id, c->>'key' AS component_key
           FROM instances i JOIN app_versions v ON v.id = i.app_version_id,
                jsonb_array_elements(v.manifest->'components') c
           WHERE i.ended_at IS NULL AND c->'entrance' = 'true'::jsonb
             AND (%(instance)s::text IS NULL OR i.id = %(instance)s)),
         rights AS (
           SELECT e.instance_id, m.user_id, m.role, m.created_at AS since
           FROM (SELECT DISTINCT instance_id, project_id FROM entrances) e
           JOIN memberships m ON m.project_id = e.project_id AND m.role IN ('project_admin', 'project_member')
           UNION ALL
           SELECT e.instance_id, g.user_id, 'grant', g.created_at
           FROM entrances e
           JOIN members b ON b.instance_id = e.instance_id AND b.component_key = e.component_key
                         AND b.status <> 'removed'
           JOIN grants g ON g.allocation_id = b.allocation_id AND g.instance_id IS NULL
                        AND g.status IN ('pending', 'active', 'failed')
                        AND (g.expires_at IS NULL OR g.expires_at > now())),
         wanted AS (
           SELECT r.instance_id, r.user_id, u.email, min(r.since) AS since,
                  CASE WHEN bool_or(r.role = 'project_admin') THEN 'project_admin'
                       WHEN bool_or(r.role = 'project_member') THEN 'project_member' ELSE 'grant' END AS role
           FROM rights r JOIN users u ON u.id = r.user_id AND NOT u.disabled
           GROUP BY r.instance_id, r.user_id, u.email),
         entries AS (
           SELECT w.instance_id, w.user_id, b.allocation_id, NOT bool_or(e.component_key IS NOT NULL) AS account_only
           FROM wanted w
           JOIN members b ON b.instance_id = w.instance_id AND b.status <> 'removed'
           JOIN allocations a ON a.id = b.allocation_id AND a.status = 'active' AND a.node_id IS NOT NULL
           LEFT JOIN entrances e ON e.instance_id = b.instance_id AND e.component_key = b.component_key
           WHERE NOT EXISTS (SELECT 1 FROM grants g
                             WHERE g.allocation_id = b.allocation_id AND g.user_id = w.user_id
                               AND g.instance_id IS NULL AND g.status IN ('pending', 'active', 'failed'))
           GROUP BY w.instance_id, w.user_id, b.allocation_id)
"""
_WANTED_PEOPLE: LiteralString = _WANTED + " SELECT * FROM wanted ORDER BY user_id"  # noqa: S608 - both are written here
_WANTED_ENTRIES: LiteralString = _WANTED + " SELECT * FROM entries ORDER BY 3, 2"  # noqa: S608 - both are written here


async def list_stale(tx: Transaction, limit: int) -> list[str]:
    """List instances whose people or entries are not as they should be."""
    query: LiteralString = (
        _WANTED  # noqa: S608 - both are written here
        + """,
         said AS (SELECT instance_id, user_id, role FROM instance_people WHERE left_at IS NULL),
         made AS (SELECT instance_id, user_id, allocation_id, account_only FROM grants
                  WHERE instance_id IS NOT NULL AND status IN ('pending', 'active', 'failed'))
    SELECT DISTINCT instance_id FROM (
        (SELECT instance_id FROM (SELECT instance_id, user_id, role FROM wanted EXCEPT SELECT * FROM said) a)
        UNION ALL
        (SELECT instance_id FROM (SELECT * FROM said EXCEPT SELECT instance_id, user_id, role FROM wanted) b)
        UNION ALL
        (SELECT instance_id FROM (SELECT * FROM entries EXCEPT SELECT * FROM made) c)
        UNION ALL
        (SELECT instance_id FROM (SELECT * FROM made EXCEPT SELECT * FROM entries) d)) stale
    ORDER BY instance_id LIMIT %(limit)s"""
    )
    return [row["instance_id"] for row in await tx.all(query, instance=None, limit=limit)]


async def list_wanted(tx: Transaction, instance_id: str) -> list[WantedPerson]:
    return await tx.fetch_all(WantedPerson, _WANTED_PEOPLE, instance=instance_id)


async def list_wanted_entries(tx: Transaction, instance_id: str) -> list[WantedEntry]:
    return await tx.fetch_all(WantedEntry, _WANTED_ENTRIES, instance=instance_id)


async def list_machine_ids(tx: Transaction, instance_id: str) -> list[str]:
    """List the machines of an instance, and those that still have an entry for it; in the order of their locks."""
    rows = await tx.all(
        """SELECT allocation_id FROM members WHERE instance_id = %(instance)s AND status <> 'removed'
           UNION SELECT allocation_id FROM grants
                 WHERE instance_id = %(instance)s AND status IN ('pending', 'active', 'failed')
           ORDER BY allocation_id""",
        instance=instance_id,
    )
    return [row["allocation_id"] for row in rows]


async def list_made(tx: Transaction, instance_id: str) -> list[GrantView]:
    return await tx.fetch_all(
        GrantView,
        """SELECT g.*, a.name AS allocation_name FROM grants g JOIN allocations a ON a.id = g.allocation_id
           WHERE g.instance_id = %(instance)s AND g.status IN ('pending', 'active', 'failed') ORDER BY g.id""",
        instance=instance_id,
    )


async def lock(tx: Transaction, instance_id: str) -> None:
    await tx.run("SELECT 1 FROM instances WHERE id = %(id)s FOR UPDATE", id=instance_id)


async def touch(tx: Transaction, instance_id: str) -> PeopledInstance:
    """Give the instance another revision: its people are a part of it."""
    return await tx.fetch(
        PeopledInstance,
        """UPDATE instances i SET revision = i.revision + 1, updated_at = now() FROM projects p
           WHERE i.id = %(id)s AND p.id = i.project_id RETURNING i.id, i.project_id, p.name AS project_name,
               i.revision""",
        id=instance_id,
    )


async def list_said(tx: Transaction, instance_id: str) -> list[PersonRecord]:
    return await tx.fetch_all(
        PersonRecord,
        "SELECT * FROM instance_people WHERE instance_id = %(instance)s AND left_at IS NULL ORDER BY user_id",
        instance=instance_id,
    )


async def put(tx: Transaction, instance_id: str, person: PersonRecord) -> None:
    await tx.run(
        """INSERT INTO instance_people (instance_id, user_id, email, login, uid, role, since)
           VALUES (%(instance)s, %(user)s, %(email)s, %(login)s, %(uid)s, %(role)s, %(since)s)
           ON CONFLICT (instance_id, user_id) DO UPDATE SET email = excluded.email, login = excluded.login,
               role = excluded.role, since = excluded.since, left_at = NULL""",
        instance=instance_id,
        user=person.user_id,
        email=person.email,
        login=person.login,
        uid=person.uid,
        role=person.role,
        since=person.since,
    )


async def leave(tx: Transaction, instance_id: str, user_ids: Sequence[str]) -> None:
    await tx.run(
        """UPDATE instance_people SET left_at = now()
           WHERE instance_id = %(instance)s AND user_id = ANY(%(users)s) AND left_at IS NULL""",
        instance=instance_id,
        users=list(user_ids),
    )


async def list_page(tx: Transaction, instance_id: str, after: str, limit: int) -> list[PersonRecord]:
    """List those who may use it, and those who are just leaving."""
    return await tx.fetch_all(
        PersonRecord,
        """SELECT * FROM instance_people
           WHERE instance_id = %(instance)s AND user_id > %(after)s
             AND (left_at IS NULL OR left_at > now() - make_interval(secs => %(leaving)s))
           ORDER BY user_id LIMIT %(limit)s""",
        instance=instance_id,
        after=after,
        leaving=LEAVING_SECONDS,
        limit=limit,
    )


async def list_entries(tx: Transaction, instance_id: str, user_ids: Sequence[str]) -> list[GrantView]:
    """List what these people have on the machines of the instance, also by grants of their own: one a machine. Who came
    back has a new one beside the one that ends."""
    return await tx.fetch_all(
        GrantView,
        """SELECT DISTINCT ON (g.user_id, g.allocation_id) g.*, a.name AS allocation_name
           FROM grants g JOIN allocations a ON a.id = g.allocation_id
           WHERE g.user_id = ANY(%(users)s) AND g.status <> 'revoked'
             AND g.allocation_id IN (SELECT allocation_id FROM members
                                     WHERE instance_id = %(instance)s AND status <> 'removed')
           ORDER BY g.user_id, g.allocation_id, g.status = 'revoking', g.id DESC""",
        instance=instance_id,
        users=list(user_ids),
    )


async def list_instances(tx: Transaction, allocation_id: str, user_ids: Sequence[str]) -> list[str]:
    """List the instances on a machine that one of these people uses, or just used: an app may have work of theirs."""
    rows = await tx.all(
        """SELECT DISTINCT b.instance_id FROM members b JOIN instance_people p ON p.instance_id = b.instance_id
           WHERE b.allocation_id = %(allocation)s AND b.status <> 'removed' AND p.user_id = ANY(%(users)s)
           ORDER BY b.instance_id""",
        allocation=allocation_id,
        users=list(user_ids),
    )
    return [row["instance_id"] for row in rows]


# Groups


async def get_group(tx: Transaction, project_id: str) -> UnixGroupRecord | None:
    return await tx.find(UnixGroupRecord, "SELECT * FROM unix_groups WHERE project_id = %(id)s", id=project_id)


async def insert_group(tx: Transaction, project_id: str, name: str, gid: int) -> UnixGroupRecord | None:
    """None where the name is taken, or the project has one by now."""
    return await tx.find(
        UnixGroupRecord,
        """INSERT INTO unix_groups (project_id, name, gid) VALUES (%(project)s, %(name)s, %(gid)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        project=project_id,
        name=name,
        gid=gid,
    )


async def list_groups(tx: Transaction, allocation_id: str) -> list[MachineGroupRecord]:
    """List the groups that a machine has, for the instance that it carries."""
    return await tx.fetch_all(
        MachineGroupRecord,
        """SELECT u.name, u.gid, array_agg(DISTINCT p.login ORDER BY p.login) AS logins
           FROM members b JOIN instances i ON i.id = b.instance_id
           JOIN instance_people p ON p.instance_id = i.id AND p.left_at IS NULL
           JOIN unix_groups u ON u.project_id = i.project_id
           WHERE b.allocation_id = %(allocation)s AND b.status <> 'removed'
           GROUP BY u.name, u.gid ORDER BY u.name""",
        allocation=allocation_id,
    )
