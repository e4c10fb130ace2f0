"""The catalogue's own life: deprecated and retired versions, publishers of single apps, entitlements of tenants."""

from alembic import op

revision = "0010"
down_revision = "0009"

_STATEMENTS = [
    """ALTER TABLE app_versions ADD COLUMN status text NOT NULL DEFAULT 'published',
           ADD COLUMN reason text NOT NULL DEFAULT ''""",
    # A publisher from before, to whom no app was named, publishes nothing until one is.
    "ALTER TABLE memberships ADD COLUMN app_slug text",
    """ALTER TABLE memberships DROP CONSTRAINT memberships_user_id_role_tenant_id_project_id_key,
           ADD CONSTRAINT membership_once UNIQUE NULLS NOT DISTINCT (user_id, role, tenant_id, project_id, app_slug)""",
    """CREATE TABLE entitlements (
           id text PRIMARY KEY,
           tenant_id text NOT NULL REFERENCES tenants,
           app_slug text NOT NULL,
           revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now(),
           UNIQUE (tenant_id, app_slug)
       )""",
    "CREATE INDEX entitlements_of_app ON entitlements (app_slug, id)",
    # Who runs an app already may go on deploying it.
    """INSERT INTO entitlements (id, tenant_id, app_slug)
       SELECT 'ent_' || left(md5(p.tenant_id || i.app_slug), 26), p.tenant_id, i.app_slug
       FROM instances i JOIN projects p ON p.id = i.project_id
       WHERE i.ended_at IS NULL GROUP BY p.tenant_id, i.app_slug""",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
