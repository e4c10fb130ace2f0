"""A database that had machines before tenants could own some is taken along."""

import secrets
from urllib.parse import urlsplit

import psycopg
from alembic import command
from psycopg import sql

from gpuaas_contract import ids
from gpuaas_platform.migrations import config
from gpuaas_stack.settings import Settings
from tests.support.database import connect, database_url

_PREFIXES = {"tenant": ids.TENANT, "project": ids.PROJECT, "node": ids.NODE, "machine": ids.ALLOCATION}
_BEFORE = """
INSERT INTO tenants (id, name, title) VALUES (%(tenant)s, 'acme', 'Acme');
INSERT INTO projects (id, tenant_id, name, title) VALUES (%(project)s, %(tenant)s, 'research', 'Research');
INSERT INTO nodes (id, name, public_key_pem, status) VALUES (%(node)s, 'one', '', 'ready');
INSERT INTO allocations (id, project_id, name, hostname, shape, status, node_id, correlation_id)
    VALUES (%(machine)s, %(project)s, 'one', 'one', '{"cpus": 1}', 'active', %(node)s, 'cor');
INSERT INTO access_grants (id, principal_id, project_id, allocation_ids, login, expires_at)
    VALUES ('acg', 'usr', %(project)s, ARRAY[%(machine)s], 'gpuaas', now());
"""


def test_machines_of_before_have_an_owner_and_usage_records(settings: Settings) -> None:
    name = f"migrated_{secrets.token_hex(4)}"
    address = urlsplit(database_url(settings))._replace(query=f"options=-csearch_path%3D{name}").geturl()
    schema = sql.Identifier(name)
    with connect(settings) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        try:
            check_migration(address)
        finally:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))


def check_migration(address: str) -> None:
    known = {kind: ids.new_id(prefix) for kind, prefix in _PREFIXES.items()}
    command.upgrade(config(address), "0004")
    with psycopg.connect(address, autocommit=True) as database:
        for statement in _BEFORE.split(";\n"):
            if statement.strip():
                database.execute(statement, known)
        command.upgrade(config(address), "head")
        machine = database.execute("SELECT tenant_id, project_id, owner_id, image FROM allocations").fetchall()
        assert machine == [(known["tenant"], known["project"], known["project"], None)]
        assert database.execute("SELECT owner_id FROM access_grants").fetchall() == [(known["project"],)]
        records = database.execute("SELECT kind, tenant_id, owner_id FROM usage_records ORDER BY kind").fetchall()
        assert records == [(kind, known["tenant"], known["project"]) for kind in ("charged", "occupied")]
