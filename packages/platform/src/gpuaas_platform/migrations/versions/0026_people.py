"""The people of an instance, their entries on its machines, and a group for each project."""

from alembic import op

revision = "0026"
down_revision = "0025"

_LIVE = "status IN ('pending', 'active', 'failed')"
_TRIGGERS = {
    "memberships": "INSERT OR UPDATE OR DELETE",
    "users": "UPDATE OF disabled OR DELETE",
    "members": "INSERT OR UPDATE OF status, allocation_id",
    "instances": "INSERT OR UPDATE OF app_version_id, ended_at",
    "grants": "INSERT OR UPDATE OF status",
}

_STATEMENTS = [
    """ALTER TABLE grants ADD COLUMN instance_id text REFERENCES instances,
       ADD COLUMN account_only boolean NOT NULL DEFAULT false,
       ADD COLUMN leaving_until timestamptz""",
    f"CREATE INDEX grants_of_instance ON grants (instance_id) WHERE instance_id IS NOT NULL AND {_LIVE}",
    "CREATE INDEX grants_leaving ON grants (leaving_until) WHERE leaving_until IS NOT NULL",
    """CREATE TABLE instance_people (
           instance_id text NOT NULL REFERENCES instances,
           user_id text NOT NULL,
           email text NOT NULL,
           login text NOT NULL,
           uid int NOT NULL,
           role text NOT NULL,
           since timestamptz NOT NULL,
           left_at timestamptz,
           PRIMARY KEY (instance_id, user_id)
       )""",
    # Numbers come from the sequence of the people's: no group of a project has that of a person.
    """CREATE TABLE unix_groups (
           project_id text PRIMARY KEY REFERENCES projects,
           name text NOT NULL UNIQUE,
           gid int NOT NULL UNIQUE,
           created_at timestamptz NOT NULL DEFAULT now()
       )""",
    """CREATE FUNCTION tell_people() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
           PERFORM pg_notify('people', '');
           RETURN NULL;
       END $$""",
    *(
        f"CREATE TRIGGER tell_people AFTER {when} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION tell_people()"
        for table, when in _TRIGGERS.items()
    ),
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
