"""Service accounts and the keys that they log in with."""

from gpuaas_platform.accounts.records import ServiceAccountKeyRecord, ServiceAccountRecord, ServiceAccountView
from gpuaas_platform.core.database import Transaction


async def insert(
    tx: Transaction,
    id: str,
    *,
    project_id: str | None,
    tenant_id: str | None,
    name: str,
    app_slug: str | None,
    role: str | None,
) -> ServiceAccountRecord | None:
    return await tx.find(
        ServiceAccountRecord,
        """INSERT INTO service_accounts (id, project_id, tenant_id, name, app_slug, role)
           VALUES (%(id)s, %(project)s, %(tenant)s, %(name)s, %(app)s, %(role)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        project=project_id,
        tenant=tenant_id,
        name=name,
        app=app_slug,
        role=role,
    )


async def get(tx: Transaction, id: str) -> ServiceAccountView | None:
    return await tx.find(
        ServiceAccountView,
        """SELECT s.*, coalesce(s.tenant_id, p.tenant_id) AS scope_tenant_id
           FROM service_accounts s LEFT JOIN projects p ON p.id = s.project_id WHERE s.id = %(id)s""",
        id=id,
    )


async def lock(tx: Transaction, id: str) -> ServiceAccountView | None:
    return await tx.find(
        ServiceAccountView,
        """SELECT s.*, coalesce(s.tenant_id, p.tenant_id) AS scope_tenant_id
           FROM service_accounts s LEFT JOIN projects p ON p.id = s.project_id
           WHERE s.id = %(id)s FOR UPDATE OF s""",
        id=id,
    )


async def list_all(
    tx: Transaction, project_ids: list[str] | None, tenant_ids: list[str], after: str, limit: int
) -> list[ServiceAccountRecord]:
    """Of these projects (None: of all there are), and of these tenants themselves."""
    return await tx.fetch_all(
        ServiceAccountRecord,
        """SELECT * FROM service_accounts WHERE id > %(after)s
             AND (%(projects)s::text[] IS NULL OR project_id = ANY(%(projects)s)
                  OR tenant_id = ANY(%(tenants)s::text[])) ORDER BY id LIMIT %(limit)s""",
        projects=project_ids,
        tenants=tenant_ids,
        after=after,
        limit=limit,
    )


async def set_disabled(tx: Transaction, id: str, disabled: bool) -> ServiceAccountRecord:
    return await tx.fetch(
        ServiceAccountRecord,
        """UPDATE service_accounts SET disabled = %(disabled)s, epoch = epoch + 1, revision = revision + 1,
                                       updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        disabled=disabled,
    )


async def touch(tx: Transaction, id: str, *, withdraw_tokens: bool = False) -> ServiceAccountRecord:
    """A new revision, because its keys changed; and no token from before, where one of them was revoked."""
    return await tx.fetch(
        ServiceAccountRecord,
        """UPDATE service_accounts SET epoch = epoch + %(epochs)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        epochs=1 if withdraw_tokens else 0,
    )


async def delete(tx: Transaction, id: str) -> None:
    await tx.run("DELETE FROM service_accounts WHERE id = %(id)s", id=id)


async def insert_key(
    tx: Transaction,
    id: str,
    account_id: str,
    kind: str,
    *,
    kid: str | None = None,
    public_key_pem: str | None = None,
    secret_hash: str | None = None,
) -> ServiceAccountKeyRecord | None:
    return await tx.find(
        ServiceAccountKeyRecord,
        """INSERT INTO service_account_keys (id, service_account_id, kind, kid, public_key_pem, secret_hash)
           VALUES (%(id)s, %(account)s, %(kind)s, %(kid)s, %(pem)s, %(hash)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        account=account_id,
        kind=kind,
        kid=kid,
        pem=public_key_pem,
        hash=secret_hash,
    )


async def list_keys(tx: Transaction, account_id: str) -> list[ServiceAccountKeyRecord]:
    return await tx.fetch_all(
        ServiceAccountKeyRecord,
        "SELECT * FROM service_account_keys WHERE service_account_id = %(account)s ORDER BY id",
        account=account_id,
    )


async def delete_key(tx: Transaction, account_id: str, key_id: str) -> ServiceAccountKeyRecord | None:
    return await tx.find(
        ServiceAccountKeyRecord,
        "DELETE FROM service_account_keys WHERE id = %(id)s AND service_account_id = %(account)s RETURNING *",
        id=key_id,
        account=account_id,
    )


async def key_was_used(tx: Transaction, key_id: str) -> None:
    await tx.run("UPDATE service_account_keys SET last_used_at = now() WHERE id = %(id)s", id=key_id)
