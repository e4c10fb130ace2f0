"""Tenants, projects, users, memberships, service accounts."""

from datetime import datetime

from gpuaas_platform.storage.database import Row, Transaction


async def insert_tenant(tx: Transaction, id: str, name: str, title: str) -> Row | None:
    return await tx.one(
        """INSERT INTO tenants (id, name, title) VALUES (%(id)s, %(name)s, %(title)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        name=name,
        title=title,
    )


async def get_tenant(tx: Transaction, id: str) -> Row | None:
    return await tx.one("SELECT * FROM tenants WHERE id = %(id)s", id=id)


async def list_tenants(tx: Transaction, seen: list[str] | None, after: str, limit: int) -> list[Row]:
    """`seen` is None for those who see all."""
    return await tx.all(
        """SELECT * FROM tenants WHERE id > %(after)s
             AND (%(seen)s::text[] IS NULL OR id = ANY(%(seen)s)) ORDER BY id LIMIT %(limit)s""",
        seen=seen,
        after=after,
        limit=limit,
    )


async def insert_project(tx: Transaction, id: str, tenant_id: str, name: str, title: str) -> Row | None:
    return await tx.one(
        """INSERT INTO projects (id, tenant_id, name, title)
           VALUES (%(id)s, %(tenant_id)s, %(name)s, %(title)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        tenant_id=tenant_id,
        name=name,
        title=title,
    )


async def get_project(tx: Transaction, id: str) -> Row | None:
    return await tx.one("SELECT * FROM projects WHERE id = %(id)s", id=id)


async def list_projects(
    tx: Transaction, seen: list[str] | None, tenants: list[str], tenant_id: str | None, after: str, limit: int
) -> list[Row]:
    return await tx.all(
        """SELECT * FROM projects WHERE id > %(after)s
             AND (%(seen)s::text[] IS NULL OR id = ANY(%(seen)s) OR tenant_id = ANY(%(tenants)s::text[]))
             AND (%(tenant_id)s::text IS NULL OR tenant_id = %(tenant_id)s)
           ORDER BY id LIMIT %(limit)s""",
        seen=seen,
        tenants=tenants,
        tenant_id=tenant_id,
        after=after,
        limit=limit,
    )


async def insert_user(tx: Transaction, id: str, email: str, password_hash: str) -> Row | None:
    return await tx.one(
        """INSERT INTO users (id, email, password_hash) VALUES (%(id)s, %(email)s, %(hash)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        email=email,
        hash=password_hash,
    )


async def any_user(tx: Transaction) -> bool:
    return await tx.one("SELECT 1 FROM users LIMIT 1") is not None


async def get_user(tx: Transaction, id: str) -> Row | None:
    return await tx.one("SELECT * FROM users WHERE id = %(id)s", id=id)


async def get_user_by_email(tx: Transaction, email: str) -> Row | None:
    return await tx.one("SELECT * FROM users WHERE email = %(email)s", email=email)


async def list_users(tx: Transaction, after: str, limit: int) -> list[Row]:
    return await tx.all(
        "SELECT * FROM users WHERE id > %(after)s ORDER BY id LIMIT %(limit)s", after=after, limit=limit
    )


async def insert_membership(
    tx: Transaction, id: str, user_id: str, role: str, tenant_id: str | None, project_id: str | None
) -> Row | None:
    return await tx.one(
        """INSERT INTO memberships (id, user_id, role, tenant_id, project_id)
           VALUES (%(id)s, %(user_id)s, %(role)s, %(tenant_id)s, %(project_id)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        user_id=user_id,
        role=role,
        tenant_id=tenant_id,
        project_id=project_id,
    )


async def memberships_of(tx: Transaction, user_id: str) -> list[Row]:
    return await tx.all(
        """SELECT m.*, coalesce(m.tenant_id, p.tenant_id) AS seen_tenant_id
           FROM memberships m LEFT JOIN projects p ON p.id = m.project_id
           WHERE m.user_id = %(user_id)s ORDER BY m.id""",
        user_id=user_id,
    )


async def insert_service_account(
    tx: Transaction, id: str, project_id: str, name: str, app_slug: str | None, public_key_pem: str
) -> Row | None:
    return await tx.one(
        """INSERT INTO service_accounts (id, project_id, name, app_slug, public_key_pem)
           VALUES (%(id)s, %(project_id)s, %(name)s, %(app_slug)s, %(key)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        project_id=project_id,
        name=name,
        app_slug=app_slug,
        key=public_key_pem,
    )


async def get_service_account(tx: Transaction, id: str) -> Row | None:
    return await tx.one(
        """SELECT s.*, p.tenant_id FROM service_accounts s JOIN projects p ON p.id = s.project_id
           WHERE s.id = %(id)s""",
        id=id,
    )


async def list_service_accounts(tx: Transaction, project_ids: list[str] | None, after: str, limit: int) -> list[Row]:
    return await tx.all(
        """SELECT * FROM service_accounts WHERE id > %(after)s
             AND (%(projects)s::text[] IS NULL OR project_id = ANY(%(projects)s)) ORDER BY id LIMIT %(limit)s""",
        projects=project_ids,
        after=after,
        limit=limit,
    )


async def use_assertion(tx: Transaction, id: str, expires_at: datetime) -> bool:
    await tx.run("DELETE FROM used_assertions WHERE expires_at < now() - interval '1 minute'")
    return (
        await tx.run(
            "INSERT INTO used_assertions (id, expires_at) VALUES (%(id)s, %(expires)s) ON CONFLICT DO NOTHING",
            id=id,
            expires=expires_at,
        )
        == 1
    )
