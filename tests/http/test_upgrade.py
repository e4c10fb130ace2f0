"""A database of the release before, with all that people had in it, is taken along; and while it is, the release before
goes on writing to it."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import websockets
from alembic import command
from psycopg import sql

from gpuaas_contract.audit import GENESIS, AuditEntry, batch_hash
from gpuaas_contract.grants import Grant
from gpuaas_contract.identity import Role, User
from gpuaas_platform.migrations import config
from gpuaas_sdk.audit import verify_audit
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ForbiddenError, InvalidStateError
from gpuaas_stack.settings import Settings
from tests.support.database import connect, postgres_of
from tests.support.identity import PASSWORD
from tests.support.lifecycle import Echo
from tests.support.policy_world import PUBLIC_KEY
from tests.support.processes import ApiProcess, fresh_database
from tests.support.services import admin_credentials
from tests.support.world import SimulatedNode, World

BEFORE = "0015"
"""The newest migration of the release before."""
COLUMNS = """SELECT table_name, column_name, data_type, is_nullable = 'YES',
       column_default IS NOT NULL OR is_identity = 'YES', is_generated = 'ALWAYS'
FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'"""
CONSTRAINTS = """SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid <> 0"""


@dataclass(frozen=True)
class Column:
    type: str
    nullable: bool
    filled: bool
    """Whether who does not name it leaves something there."""
    generated: bool


Tables = dict[str, dict[str, Column]]


def read_tables(url: str) -> Tables:
    found: Tables = {}
    with psycopg.connect(url) as database:
        for table, name, *column in database.execute(COLUMNS):
            found.setdefault(table, {})[name] = Column(*column)
    return found


@contextmanager
def database_of_before(settings: Settings) -> Iterator[str]:
    with fresh_database(settings) as url:
        command.upgrade(config(url), BEFORE)
        yield url


def test_the_release_before_can_write_to_what_the_migrations_leave(settings: Settings) -> None:
    with database_of_before(settings) as old_url, fresh_database(settings) as new_url:
        command.upgrade(config(new_url), "head")
        old, new = read_tables(old_url), read_tables(new_url)
        for table, columns in old.items():
            for name, column in columns.items():
                now = new[table][name]
                assert now.type == column.type, f"{table}.{name}"
                assert now.nullable >= column.nullable, f"{table}.{name} may not be left empty any more"
                assert now.filled >= column.filled, f"{table}.{name} has no default any more"
            for name in new[table].keys() - columns.keys():
                added = new[table][name]
                assert added.nullable or added.filled or added.generated, f"{table}.{name}: who does not know it fails"
        with psycopg.connect(old_url) as before, psycopg.connect(new_url) as after:
            held = {row for row in before.execute(CONSTRAINTS).fetchall() if row[0] in old}
            rules = {row for row in after.execute(CONSTRAINTS).fetchall() if row[0] in old}
            unknown = {(table, name) for table in old for name in new[table].keys() - old[table].keys()}
            # One about a column alone that the release before leaves empty does not reach its rows.
            reached = {rule for rule in rules - held if (rule[0], foreign_column(rule[1])) not in unknown}
            assert reached == set(), "a new rule about rows that the release before writes"
            # Its one function, by the names that it reads.
            asked = "SELECT held, fingerprint, status, body FROM begin_request('usr', 'key')"
            assert after.execute(asked).fetchone() == (True, None, None, None)


def foreign_column(rule: str) -> str | None:
    found = re.match(r"FOREIGN KEY \((\w+)\)", rule)
    return found and found[1]


def copy_as_before(settings: Settings, url: str) -> None:
    """All rows, with the columns that the release before had; the audit trail sealed as it did that."""
    tables = read_tables(url)
    # A superuser: rows come in any order, and triggers have run already.
    target = postgres_of(settings).admin_url(urlsplit(url).path[1:])
    with connect(settings) as source, psycopg.connect(target) as database:
        database.execute("SET session_replication_role = replica")
        for table, columns in tables.items():
            names = sql.SQL(", ").join(sql.Identifier(name) for name, one in columns.items() if not one.generated)
            words = {"table": sql.Identifier(table), "names": names}
            database.execute(sql.SQL("DELETE FROM {table}").format(**words))
            with (
                source.cursor().copy(sql.SQL("COPY (SELECT {names} FROM {table}) TO STDOUT").format(**words)) as rows,
                database.cursor().copy(sql.SQL("COPY {table} ({names}) FROM STDIN").format(**words)) as writer,
            ):
                for piece in rows:
                    writer.write(piece)
        for schema, name in source.execute("SELECT schemaname, sequencename FROM pg_sequences").fetchall():
            sequence = sql.Identifier(schema, name)
            (value,) = source.execute(sql.SQL("SELECT last_value FROM {}").format(sequence)).fetchone() or (1,)
            with suppress(psycopg.errors.UndefinedTable), database.transaction():
                database.execute("SELECT setval(%s, %s)", (f"{schema}.{name}", value))
        seal_as_before(database)


def seal_as_before(database: psycopg.Connection[Any]) -> None:
    """In batches of a chain, but for the newest entry, which nobody has sealed yet."""
    database.execute("DELETE FROM audit_batches")
    database.execute("UPDATE audit_entries SET position = NULL, batch = NULL")
    fields = "id, at, chain, principal_id, action, target, outcome, project_id, correlation_id, fingerprint, detail"
    chains: dict[str, list[dict[str, Any]]] = {}
    with database.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        for row in cursor.execute(f"SELECT {fields} FROM audit_entries ORDER BY seq"):
            chains.setdefault(row["chain"], []).append(row)
    for chain, rows in chains.items():
        previous, last, sealed = GENESIS, 0, rows[:-1]
        for number, start in enumerate(range(0, len(sealed), 7), 1):
            batch = sealed[start : start + 7]
            entries = [AuditEntry(**row, position=start + at, form=1) for at, row in enumerate(batch, 1)]
            previous, last = batch_hash(previous, entries), start + len(batch)
            database.execute(
                """INSERT INTO audit_batches (chain, number, first_position, last_position, hash)
                   VALUES (%s, %s, %s, %s, %s)""",
                (chain, number, start + 1, last, previous),
            )
            for entry in entries:
                query = "UPDATE audit_entries SET position = %s, batch = %s WHERE id = %s"
                database.execute(query, (entry.position, number, entry.id))


@dataclass
class Life:
    """Everything that somebody had before."""

    running: Echo
    ended: Echo
    person: User
    grant: Grant
    bearer: str
    key: str
    tenant_of_key: str


async def live(world: World) -> Life:
    running = await Echo.deployed(world, await world.allocation("tail"), head=await world.allocation("head"))
    ended = Echo(world, running.controller, (await world.deploy(head=await world.allocation("other"), name="other")).id)
    await ended.controller.run_all()
    await world.admin.instances.request(ended.id, "decommission")
    await ended.controller.run_all()
    assert await ended.status() == "decommissioned"
    person = await world.admin.users.create(f"ada-{secrets.token_hex(4)}@example.com", PASSWORD)
    await world.admin.memberships.create(person.id, Role.PROJECT_MEMBER, project_id=world.project.id)
    (machine, *_) = await world.admin.allocations.list(project_id=world.project.id).all()
    grant = await world.grant_at_rest((await world.admin.grants.create(machine.id, person.id)).id)
    await world.admin.credentials.create(world.project.id, "outside")
    key = secrets.token_hex(8)
    kept = await world.admin.tenants.create(f"kept-{key}", idempotency_key=key)
    bearer = (await world.admin.fetch_token()).access_token
    return Life(running, ended, person, grant, bearer, key, kept.id)


async def test_people_and_what_they_had_work_after_the_upgrade(world: World, settings: Settings) -> None:
    life = await live(world)
    with database_of_before(settings) as url:
        copy_as_before(settings, url)
        platform = ApiProcess(settings, url)
        done = platform.run("migrate")
        assert done.returncode == 0, done.stderr
        with platform.serving() as address:
            await check_life(world, life, address, settings)


async def check_life(world: World, life: Life, address: str, settings: Settings) -> None:
    node = SimulatedNode(world.node.node_id, world.node.private_key_pem, address)
    link = asyncio.create_task(node.run())
    async with GpuaasClient(address, PasswordCredentials(*admin_credentials(settings))) as admin:
        try:
            await check_things(admin, world, life)
            await check_person(admin, life, address)
            await check_trail(admin, world)
        finally:
            link.cancel()
            with suppress(asyncio.CancelledError, websockets.WebSocketException):
                await link
    async with httpx.AsyncClient(base_url=address) as http:
        # A log-in from before goes on.
        asked = await http.get("/v1/tenants", headers={"Authorization": f"Bearer {life.bearer}"})
        assert asked.status_code == 200


async def check_things(admin: GpuaasClient, world: World, life: Life) -> None:
    async def is_ready() -> bool:
        return (await admin.nodes.get(world.node.node_id)).status == "ready"

    await world.until(is_ready, "the node of before is back by its own key")
    instance = await admin.instances.get(life.running.id)
    assert instance.status == "running"
    members = await admin.instances.members(life.running.id).all()
    assert {member.component_key for member in members} == {"head", "tail"}
    operations = [operation async for operation in admin.operations.list(instance_id=life.ended.id)]
    assert {operation.kind: operation.state for operation in operations}["decommission"] == "succeeded"
    with pytest.raises(InvalidStateError, match="before this platform signed receipts"):
        await admin.receipts.get(life.ended.id)
    (credential,) = await admin.credentials.list(project_id=world.project.id).all()
    assert (credential.name, credential.status) == ("outside", "active")
    again = await admin.tenants.create(f"kept-{life.key}", idempotency_key=life.key)
    assert again.id == life.tenant_of_key, "a request from before that is repeated gives its answer"
    # New work on what is old, up to a receipt.
    await admin.instances.request(life.running.id, "restart")


async def check_person(admin: GpuaasClient, life: Life, address: str) -> None:
    async with GpuaasClient(address, PasswordCredentials(life.person.email, PASSWORD)) as person:
        access = await person.allocations.access(life.grant.allocation_id, PUBLIC_KEY)
        assert access.login == life.grant.login
        with pytest.raises(ForbiddenError):
            await person.allocations.access(life.grant.allocation_id, PUBLIC_KEY, administrator=True)
    assert (await admin.allocations.access(life.grant.allocation_id, PUBLIC_KEY)).login == "gpuaas"
    assert (await admin.grants.revoke(life.grant.id)).status in {"revoking", "revoked"}


async def check_trail(admin: GpuaasClient, world: World) -> None:
    """Entries that were sealed before and those that came after are one chain."""

    async def is_whole() -> bool:
        entries = [entry async for entry in admin.audit.list(tenant_id=world.tenant.id)]
        return {1, 2} <= {entry.form for entry in entries if entry.position is not None}

    await world.until(is_whole, "entries of both forms are sealed")
    report = await verify_audit(admin, tenant_id=world.tenant.id)
    assert report.entries > 10
