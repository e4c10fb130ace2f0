"""Tables of the walking skeleton."""

from alembic import op

revision = "0001"
down_revision = None

_RESOURCE = """
    revision bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
"""

_TABLES = f"""
CREATE TABLE tenants (
    id text PRIMARY KEY,
    name text NOT NULL UNIQUE,
    title text NOT NULL,
    {_RESOURCE}
);

CREATE SEQUENCE project_network_index MINVALUE 0 START 1;
CREATE TABLE projects (
    id text PRIMARY KEY,
    tenant_id text NOT NULL REFERENCES tenants,
    name text NOT NULL,
    title text NOT NULL,
    network_index int NOT NULL UNIQUE DEFAULT nextval('project_network_index'),
    {_RESOURCE},
    UNIQUE (tenant_id, name)
);

CREATE TABLE users (
    id text PRIMARY KEY,
    email text NOT NULL UNIQUE,
    password_hash text NOT NULL,
    epoch int NOT NULL DEFAULT 1,
    disabled boolean NOT NULL DEFAULT false,
    {_RESOURCE}
);

CREATE TABLE memberships (
    id text PRIMARY KEY,
    user_id text NOT NULL REFERENCES users,
    role text NOT NULL,
    tenant_id text REFERENCES tenants,
    project_id text REFERENCES projects,
    {_RESOURCE},
    UNIQUE NULLS NOT DISTINCT (user_id, role, tenant_id, project_id)
);

CREATE TABLE service_accounts (
    id text PRIMARY KEY,
    project_id text NOT NULL REFERENCES projects,
    name text NOT NULL,
    app_slug text,
    public_key_pem text NOT NULL,
    epoch int NOT NULL DEFAULT 1,
    disabled boolean NOT NULL DEFAULT false,
    {_RESOURCE},
    UNIQUE (project_id, name)
);

-- A client assertion is good for one token; rows are swept after their expiry.
CREATE TABLE used_assertions (
    id text PRIMARY KEY,
    expires_at timestamptz NOT NULL
);

CREATE TABLE join_tokens (
    id text PRIMARY KEY,
    node_name text NOT NULL,
    token_hash text NOT NULL UNIQUE,
    expires_at timestamptz NOT NULL,
    used_by_node_id text,
    {_RESOURCE}
);

CREATE TABLE nodes (
    id text PRIMARY KEY,
    name text NOT NULL UNIQUE,
    public_key_pem text NOT NULL,
    status text NOT NULL,
    inventory jsonb,
    last_seen_at timestamptz,
    link_id text,
    {_RESOURCE}
);

CREATE TABLE allocations (
    id text PRIMARY KEY,
    project_id text NOT NULL REFERENCES projects,
    name text NOT NULL,
    shape jsonb NOT NULL,
    status text NOT NULL,
    reason text NOT NULL DEFAULT '',
    node_id text REFERENCES nodes,
    hostname text NOT NULL,
    address text,
    network_id text,
    network_policy_id text,
    project_network_id text,
    correlation_id text NOT NULL,
    {_RESOURCE}
);
CREATE UNIQUE INDEX allocation_live_name ON allocations (project_id, name) WHERE status <> 'released';
CREATE UNIQUE INDEX allocation_live_address ON allocations (address) WHERE status <> 'released';
CREATE INDEX allocation_node ON allocations (node_id) WHERE status <> 'released';

CREATE TABLE allocation_timeline (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    allocation_id text NOT NULL REFERENCES allocations,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    step text NOT NULL,
    message text NOT NULL,
    correlation_id text NOT NULL
);
CREATE INDEX allocation_timeline_order ON allocation_timeline (allocation_id, id);

CREATE TABLE node_tasks (
    id text PRIMARY KEY,
    node_id text NOT NULL REFERENCES nodes,
    allocation_id text NOT NULL REFERENCES allocations,
    spec jsonb NOT NULL,
    state text NOT NULL DEFAULT 'queued',
    correlation_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz
);
CREATE INDEX node_tasks_open ON node_tasks (node_id, id) WHERE state = 'queued';

CREATE TABLE app_versions (
    id text PRIMARY KEY,
    app_slug text NOT NULL,
    version text NOT NULL,
    manifest jsonb NOT NULL,
    {_RESOURCE},
    UNIQUE (app_slug, version)
);

CREATE TABLE artifacts (
    id text PRIMARY KEY,
    app_slug text NOT NULL,
    digest text NOT NULL,
    size bigint NOT NULL,
    media_type text NOT NULL,
    {_RESOURCE},
    UNIQUE (app_slug, digest)
);

CREATE TABLE instances (
    id text PRIMARY KEY,
    project_id text NOT NULL REFERENCES projects,
    app_slug text NOT NULL,
    app_version_id text NOT NULL REFERENCES app_versions,
    name text NOT NULL,
    inputs jsonb NOT NULL,
    placement_intent jsonb NOT NULL,
    desired_state text NOT NULL,
    generation int NOT NULL DEFAULT 1,
    conditions jsonb NOT NULL DEFAULT '[]',
    access_notes jsonb NOT NULL DEFAULT '[]',
    observed_runtime text,
    ended_at timestamptz,
    correlation_id text NOT NULL,
    {_RESOURCE}
);
CREATE UNIQUE INDEX instance_live_name ON instances (project_id, name) WHERE ended_at IS NULL;

CREATE TABLE members (
    id text PRIMARY KEY,
    instance_id text NOT NULL REFERENCES instances,
    component_key text NOT NULL,
    allocation_id text NOT NULL REFERENCES allocations,
    node_id text,
    status text NOT NULL,
    conditions jsonb NOT NULL DEFAULT '[]',
    adapter_detail jsonb NOT NULL DEFAULT '{{}}',
    last_operation_id text,
    correlation_id text NOT NULL,
    {_RESOURCE}
);
CREATE INDEX members_of_instance ON members (instance_id);
CREATE INDEX members_on_allocation ON members (allocation_id) WHERE status <> 'removed';

-- One sequence for all leases: a later claim has a larger token than any earlier one.
CREATE SEQUENCE fencing_token;
CREATE TABLE operations (
    id text PRIMARY KEY,
    instance_id text NOT NULL REFERENCES instances,
    member_id text REFERENCES members,
    project_id text NOT NULL,
    app_slug text NOT NULL,
    kind text NOT NULL,
    input jsonb NOT NULL,
    state text NOT NULL,
    attempt int NOT NULL DEFAULT 0,
    deadline timestamptz NOT NULL,
    error jsonb,
    result jsonb NOT NULL DEFAULT '{{}}',
    lease_holder text,
    lease_account_id text,
    lease_expires_at timestamptz,
    fencing_token bigint,
    requested_by text NOT NULL,
    correlation_id text NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    {_RESOURCE}
);
CREATE INDEX operations_open ON operations (project_id, app_slug, id) WHERE state IN ('pending', 'running');
CREATE INDEX operations_of_instance ON operations (instance_id, id);
CREATE UNIQUE INDEX one_open_operation_per_member ON operations (member_id)
    WHERE state IN ('pending', 'running');

CREATE TABLE operation_steps (
    operation_id text NOT NULL REFERENCES operations,
    attempt int NOT NULL,
    key text NOT NULL,
    title text NOT NULL,
    status text NOT NULL,
    message text NOT NULL DEFAULT '',
    evidence jsonb NOT NULL DEFAULT '{{}}',
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    PRIMARY KEY (operation_id, attempt, key)
);

CREATE TABLE access_grants (
    id text PRIMARY KEY,
    principal_id text NOT NULL,
    project_id text NOT NULL,
    allocation_ids text[] NOT NULL,
    login text NOT NULL,
    operation_id text REFERENCES operations,
    expires_at timestamptz NOT NULL,
    ended_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX access_grants_of_operation ON access_grants (operation_id) WHERE ended_at IS NULL;

CREATE TABLE deliveries (
    id text PRIMARY KEY,
    operation_id text NOT NULL REFERENCES operations,
    allocation_id text NOT NULL,
    digest text NOT NULL,
    task_id text NOT NULL REFERENCES node_tasks,
    status text NOT NULL,
    path text,
    reason text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deliveries_of_task ON deliveries (task_id);

-- The outbox of the change feed: `seq` is taken under the row lock of the changed object, `position` is
-- given to committed rows by the one sequencer.
CREATE TABLE changes (
    seq bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    position bigint UNIQUE,
    noun text NOT NULL,
    resource_id text NOT NULL,
    event text NOT NULL,
    message text NOT NULL,
    revision bigint NOT NULL,
    project_id text,
    instance_id text,
    correlation_id text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX changes_unsequenced ON changes (seq) WHERE position IS NULL;
CREATE INDEX changes_of_instance ON changes (instance_id, position);

CREATE TABLE audit_entries (
    id text PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    principal_id text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    project_id text,
    correlation_id text NOT NULL,
    detail jsonb NOT NULL DEFAULT '{{}}'
);
CREATE INDEX audit_of_project ON audit_entries (project_id, id);

CREATE TABLE idempotency_keys (
    principal_id text NOT NULL,
    key text NOT NULL,
    fingerprint text NOT NULL,
    status int NOT NULL,
    body text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (principal_id, key)
);
"""


def upgrade() -> None:
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
