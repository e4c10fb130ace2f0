"""The change feed: where a change belongs, marks of its head and its oldest end, and who must be asked again."""

from alembic import op

revision = "0004"
down_revision = "0003"

# A stream is opened by somebody and lives on. Whatever changes who they are or what they may do says so, here,
# where no code path can forget it. `epoch` and `disabled` of users and accounts, roles, and ended logins.
_TRIGGERS = """
CREATE FUNCTION tell_principal() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    it record;
BEGIN
    IF TG_OP = 'DELETE' THEN it := OLD; ELSE it := NEW; END IF;
    PERFORM pg_notify('principals', CASE TG_ARGV[0] WHEN 'user_id' THEN to_jsonb(it) ->> 'user_id' ELSE it.id END);
    RETURN NULL;
END $$;

CREATE TRIGGER tell_principal AFTER UPDATE OF epoch, disabled, password_change_required OR DELETE ON users
    FOR EACH ROW EXECUTE FUNCTION tell_principal('id');

CREATE TRIGGER tell_principal AFTER UPDATE OF epoch, disabled, role, app_slug OR DELETE ON service_accounts
    FOR EACH ROW EXECUTE FUNCTION tell_principal('id');

CREATE TRIGGER tell_principal AFTER INSERT OR UPDATE OR DELETE ON memberships
    FOR EACH ROW EXECUTE FUNCTION tell_principal('user_id');

CREATE TRIGGER tell_principal AFTER DELETE ON sessions
    FOR EACH ROW EXECUTE FUNCTION tell_principal('user_id')
"""

_STATEMENTS = [
    "ALTER TABLE changes ADD COLUMN tenant_id text, ADD COLUMN app_slug text",
    "UPDATE changes SET tenant_id = p.tenant_id FROM projects p WHERE p.id = changes.project_id",
    "UPDATE changes SET tenant_id = resource_id WHERE noun = 'tenant'",
    "UPDATE changes SET app_slug = i.app_slug FROM instances i WHERE i.id = changes.instance_id",
    """CREATE TABLE feed_marks (name text PRIMARY KEY, position bigint NOT NULL) WITH (fillfactor = 50)""",
    """INSERT INTO feed_marks SELECT 'head', coalesce(max(position), 0) FROM changes
       UNION ALL SELECT 'swept', coalesce(min(position) - 1, 0) FROM changes""",
    *_TRIGGERS.split(";\n\n"),
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
