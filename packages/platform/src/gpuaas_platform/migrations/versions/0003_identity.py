"""Logins of people, several keys per service account, tenants' accounts, and ends of tenants and projects."""

from alembic import op

revision = "0003"
down_revision = "0002"


def _nothing_new_in(noun: str) -> list[str]:
    """An ended row stays, so a foreign key alone would let new things in. The lock is the one that a
    foreign key takes anyway: whoever ends a tenant or project at the same moment is waited for."""
    function = f"""
        CREATE FUNCTION refuse_ended_{noun}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM 1 FROM {noun}s WHERE id = NEW.{noun}_id AND deleted_at IS NULL FOR KEY SHARE;
            IF NEW.{noun}_id IS NOT NULL AND NOT FOUND THEN
                RAISE foreign_key_violation USING MESSAGE = 'there is no {noun} ' || NEW.{noun}_id;
            END IF;
            RETURN NEW;
        END $$"""
    tables = {"tenant": ["projects"], "project": ["allocations", "instances"]}[noun]
    return [function] + [
        f"CREATE TRIGGER no_ended_{noun} BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_ended_{noun}()"
        for table in [*tables, "service_accounts", "memberships"]
    ]


_STATEMENTS = [
    # What happened in a tenant or project is kept after its end, so its row is, too. Its name is free again.
    "ALTER TABLE tenants ADD COLUMN deleted_at timestamptz, DROP CONSTRAINT tenants_name_key",
    "CREATE UNIQUE INDEX tenant_live_name ON tenants (name) WHERE deleted_at IS NULL",
    "ALTER TABLE projects ADD COLUMN deleted_at timestamptz, DROP CONSTRAINT projects_tenant_id_name_key",
    "CREATE UNIQUE INDEX project_live_name ON projects (tenant_id, name) WHERE deleted_at IS NULL",
    "ALTER TABLE users ADD COLUMN password_change_required boolean NOT NULL DEFAULT false",
    "CREATE INDEX memberships_of_project ON memberships (project_id)",
    "CREATE INDEX memberships_of_tenant ON memberships (tenant_id)",
    """CREATE TABLE service_account_keys (
           id text PRIMARY KEY,
           service_account_id text NOT NULL REFERENCES service_accounts ON DELETE CASCADE,
           kind text NOT NULL,
           kid text,
           public_key_pem text,
           secret_hash text,
           last_used_at timestamptz,
           revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now(),
           CHECK (num_nonnulls(public_key_pem, secret_hash) = 1),
           UNIQUE (service_account_id, kid)
       )""",
    """INSERT INTO service_account_keys (id, service_account_id, kind, public_key_pem)
       SELECT 'sak_' || substr(id, 5), id, 'public_key', public_key_pem FROM service_accounts""",
    """ALTER TABLE service_accounts
           DROP COLUMN public_key_pem,
           ALTER COLUMN project_id DROP NOT NULL,
           ADD COLUMN tenant_id text REFERENCES tenants,
           ADD COLUMN role text,
           ADD CHECK (num_nonnulls(project_id, tenant_id) = 1),
           ADD UNIQUE (tenant_id, name)""",
    # One login of a person. A browser shows a secret, whose hash is here; tokens name the id. Each use moves
    # `expires_at`, up to `ends_at`.
    """CREATE TABLE sessions (
           id text PRIMARY KEY,
           user_id text NOT NULL REFERENCES users ON DELETE CASCADE,
           kind text NOT NULL,
           client text NOT NULL,
           secret_hash text UNIQUE,
           epoch int NOT NULL,
           idle_seconds int NOT NULL,
           last_used_at timestamptz NOT NULL DEFAULT now(),
           expires_at timestamptz NOT NULL,
           ends_at timestamptz NOT NULL,
           created_at timestamptz NOT NULL DEFAULT now()
       )""",
    "CREATE INDEX sessions_of_user ON sessions (user_id, id)",
    "CREATE INDEX sessions_end ON sessions (expires_at)",
    # Used ones stay as long as their session, so that the second use of one is noticed.
    """CREATE TABLE refresh_tokens (
           token_hash text PRIMARY KEY,
           session_id text NOT NULL REFERENCES sessions ON DELETE CASCADE,
           used_at timestamptz,
           created_at timestamptz NOT NULL DEFAULT now()
       )""",
    "CREATE INDEX refresh_tokens_of_session ON refresh_tokens (session_id)",
    """CREATE TABLE device_authorizations (
           id text PRIMARY KEY,
           device_code_hash text NOT NULL UNIQUE,
           user_code text NOT NULL UNIQUE,
           client_id text NOT NULL,
           status text NOT NULL DEFAULT 'pending',
           user_id text REFERENCES users ON DELETE CASCADE,
           poll_seconds int NOT NULL,
           polled_at timestamptz,
           expires_at timestamptz NOT NULL,
           revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now()
       )""",
    "CREATE INDEX device_authorizations_end ON device_authorizations (expires_at)",
    *_nothing_new_in("tenant"),
    *_nothing_new_in("project"),
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
