"""The bare side of the benchmarks: the same server and framework, the same statements, nothing else.

Run as `python -m benchmarks.bare PORT DATABASE_URL`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request, Response
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from gpuaas_contract import ids
from gpuaas_platform.identity.storage.principals import _USER_OF_TOKEN

READ = "SELECT * FROM projects WHERE id = %(id)s"
WRITES = (
    """INSERT INTO service_accounts (id, project_id, name) VALUES (%(id)s, %(project)s, %(name)s) RETURNING *""",
    """INSERT INTO changes (noun, resource_id, event, message, revision, project_id, correlation_id)
       VALUES ('service_account', %(id)s, 'created', '', 1, %(project)s, %(correlation)s)""",
    "SELECT pg_notify('outbox', '')",
    """INSERT INTO audit_entries (id, chain, principal_id, action, target, outcome, project_id, correlation_id,
                                  fingerprint, detail)
       VALUES (%(audit)s, (SELECT tenant_id FROM projects WHERE id = %(project)s), 'bare', 'service_account.create',
               %(id)s, 'succeeded', %(project)s, %(correlation)s, %(fingerprint)s, '{}')""",
    """INSERT INTO idempotency_keys (principal_id, key, fingerprint, status, body)
       VALUES ('bare', %(audit)s, %(fingerprint)s, 201, %(body)s)""",
)

CLAIM = (
    "SELECT 1 FROM nodes WHERE id = %(node)s FOR UPDATE",
    """INSERT INTO allocations (id, tenant_id, project_id, name, hostname, shape, status, correlation_id, node_id,
                                address, image)
       VALUES (%(id)s, (SELECT tenant_id FROM projects WHERE id = %(project)s), %(project)s, %(name)s, %(name)s,
               %(shape)s, 'provisioning', %(correlation)s, %(node)s, %(name)s, 'bench')
       RETURNING *""",
    *[
        """INSERT INTO allocation_timeline (allocation_id, step, message, correlation_id)
           VALUES (%(id)s, 'step', 'one of two', %(correlation)s)"""
    ]
    * 2,
    *[
        """INSERT INTO changes (noun, resource_id, event, message, revision, project_id, correlation_id)
           VALUES ('allocation', %(id)s, 'step', 'one of two', 1, %(project)s, %(correlation)s)"""
    ]
    * 2,
    """INSERT INTO usage_records (id, kind, tenant_id, project_id, allocation_id, shapes)
       VALUES (%(usage)s, 'occupied', (SELECT tenant_id FROM projects WHERE id = %(project)s), %(project)s, %(id)s,
               '[]')""",
    """INSERT INTO node_tasks (id, node_id, allocation_id, spec, correlation_id, state)
       VALUES (%(task)s, %(node)s, %(id)s, %(shape)s, %(correlation)s, 'done')""",
    "SELECT pg_notify('node_tasks', %(node)s), pg_notify('outbox', '')",
    """INSERT INTO audit_entries (id, chain, principal_id, action, target, outcome, project_id, correlation_id,
                                  fingerprint, detail)
       VALUES (%(audit)s, (SELECT tenant_id FROM projects WHERE id = %(project)s), 'bare', 'allocation.create',
               %(id)s, 'succeeded', %(project)s, %(correlation)s, %(fingerprint)s, '{}')""",
    WRITES[-1],
)

STEP = (
    "SELECT 1 FROM operations WHERE id = %(id)s FOR UPDATE",
    "SELECT * FROM operations o JOIN projects p ON p.id = o.project_id WHERE o.id = %(id)s",
    """INSERT INTO operation_steps (operation_id, attempt, key, title, status, message, evidence)
       VALUES (%(id)s, 1, %(key)s, %(title)s, %(status)s, '', '{}')
       ON CONFLICT (operation_id, attempt, key) DO UPDATE SET status = excluded.status""",
    "UPDATE operations SET revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *",
    """WITH told AS (INSERT INTO changes (noun, resource_id, event, message, revision, correlation_id)
                     VALUES ('operation', %(id)s, 'step_running', %(title)s, 1, %(correlation)s)),
            kept AS (INSERT INTO instance_events (instance_id, noun, resource_id, event, message, principal_id,
                                                  correlation_id)
                     VALUES ('bare', 'operation', %(id)s, 'step_running', %(title)s, 'bare', %(correlation)s))
       SELECT pg_notify('outbox', '')""",
    WRITES[-1],
)


def create_app(database_url: str) -> FastAPI:
    options = {"row_factory": dict_row, "autocommit": True}
    pool = AsyncConnectionPool(database_url, min_size=2, max_size=16, open=False, kwargs=options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with pool:
            yield

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    @app.get("/projects/{id}")
    async def read(id: str, user: str | None = None, session: str | None = None) -> Response:
        if user is not None:
            # As the platform does: who it is comes first, on a connection that is free again for the rest.
            async with pool.connection() as connection:
                await (await connection.execute(_USER_OF_TOKEN, {"user": user, "session": session})).fetchone()
        async with pool.connection() as connection:
            row = await (await connection.execute(READ, {"id": id})).fetchone()
        return Response(json.dumps(row, default=str), media_type="application/json")

    @app.post("/service-accounts")
    async def create(request: Request) -> Response:
        body = await request.json()
        values = {
            "id": ids.new_id(ids.SERVICE_ACCOUNT),
            "audit": ids.new_id(ids.AUDIT_ENTRY),
            "correlation": ids.new_id(ids.CORRELATION),
            "fingerprint": "0" * 64,
            "project": body["project_id"],
            "name": body["name"],
            "body": "x" * 300,
        }
        async with pool.connection() as connection, connection.transaction():
            row = await (await connection.execute(WRITES[0].encode(), values)).fetchone()
            for statement in WRITES[1:]:
                await connection.execute(statement.encode(), values)
        return Response(json.dumps(row, default=str), 201, media_type="application/json")

    @app.post("/claims")
    async def claim(request: Request) -> Response:
        body = await request.json()
        values = {
            "id": ids.new_id(ids.ALLOCATION),
            "audit": ids.new_id(ids.AUDIT_ENTRY),
            "usage": ids.new_id(ids.USAGE),
            "task": ids.new_id(ids.TASK),
            "correlation": ids.new_id(ids.CORRELATION),
            "fingerprint": "0" * 64,
            "project": body["project_id"],
            "node": body["node_id"],
            "name": body["name"],
            "shape": json.dumps(body["shape"]),
            "body": "x" * 1500,
        }
        async with pool.connection() as connection, connection.transaction():
            await connection.execute(CLAIM[0].encode(), values)
            row = await (await connection.execute(CLAIM[1].encode(), values)).fetchone()
            for statement in CLAIM[2:]:
                await connection.execute(statement.encode(), values)
        return Response(json.dumps(row, default=str), 201, media_type="application/json")

    @app.post("/operations/{id}/steps")
    async def report_step(id: str, request: Request) -> Response:
        body = await request.json()
        values = {
            "id": id,
            **{name: body[name] for name in ("key", "title", "status")},
            "correlation": ids.new_id(ids.CORRELATION),
            "audit": ids.new_id(ids.AUDIT_ENTRY),
            "fingerprint": "0" * 64,
            "body": "x" * 200,
        }
        async with pool.connection() as connection, connection.transaction():
            for statement in STEP:
                cursor = await connection.execute(statement.encode(), values)
                row = await cursor.fetchone() if statement.startswith("UPDATE") else None
        return Response(json.dumps(row, default=str), media_type="application/json")

    return app


if __name__ == "__main__":
    # The same settings of the server as in `gpuaas_platform.serving`.
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(sys.argv[2]),
            host="127.0.0.1",
            port=int(sys.argv[1]),
            access_log=False,
            log_config=None,
            ws_per_message_deflate=False,
        )
    )
    asyncio.run(server.serve())
