"""Machines: restart and resize, usage records, quotas, node intents and identities, volumes."""

from alembic import op

revision = "0005"
down_revision = "0004"

_STATEMENTS = [
    """ALTER TABLE allocations
           ADD COLUMN image text,
           ADD COLUMN activity text,
           ADD COLUMN wanted_shape jsonb,
           ADD COLUMN asked_operation_ids text[] NOT NULL DEFAULT '{}'""",
    # A tenant may own machines itself. Its network is numbered with its first machine, so that the range lasts.
    "ALTER TABLE tenants ADD COLUMN network_index int UNIQUE",
    """ALTER TABLE allocations
           ALTER COLUMN project_id DROP NOT NULL,
           ADD COLUMN tenant_id text REFERENCES tenants,
           ADD COLUMN owner_id text GENERATED ALWAYS AS (coalesce(project_id, tenant_id)) STORED""",
    "UPDATE allocations a SET tenant_id = p.tenant_id FROM projects p WHERE p.id = a.project_id",
    "ALTER TABLE allocations ALTER COLUMN tenant_id SET NOT NULL",
    "DROP INDEX allocation_live_name",
    "CREATE UNIQUE INDEX allocation_live_name ON allocations (owner_id, name) WHERE status <> 'released'",
    # A renamed machine keeps its host name, which no other machine of its owner may have meanwhile.
    "CREATE UNIQUE INDEX allocation_live_hostname ON allocations (owner_id, hostname) WHERE status <> 'released'",
    # Whose authority signs: that of the machine's owner.
    "ALTER TABLE access_grants ALTER COLUMN project_id DROP NOT NULL, ADD COLUMN owner_id text",
    "UPDATE access_grants SET owner_id = project_id",
    "ALTER TABLE access_grants ALTER COLUMN owner_id SET NOT NULL",
    "CREATE INDEX allocations_waiting ON allocations (id) WHERE status = 'requested'",
    """CREATE TABLE usage_records (
           id text PRIMARY KEY,
           kind text NOT NULL,
           tenant_id text NOT NULL REFERENCES tenants,
           project_id text REFERENCES projects,
           owner_id text GENERATED ALWAYS AS (coalesce(project_id, tenant_id)) STORED,
           allocation_id text NOT NULL REFERENCES allocations,
           started_at timestamptz NOT NULL DEFAULT now(),
           ended_at timestamptz,
           shapes jsonb NOT NULL,
           UNIQUE (allocation_id, kind)
       )""",
    "CREATE INDEX usage_of_owner ON usage_records (owner_id, id)",
    # Machines that were there before there were records.
    """INSERT INTO usage_records (id, kind, tenant_id, project_id, allocation_id, started_at, shapes)
       SELECT 'usg_' || substr(a.id, 5, 25) || k.mark, k.kind, a.tenant_id, a.project_id, a.id, a.updated_at,
              jsonb_build_array(jsonb_build_object('since', a.updated_at, 'shape', a.shape))
       FROM allocations a CROSS JOIN (VALUES ('charged', 'c'), ('occupied', 'd')) AS k (kind, mark)
       WHERE a.status <> 'released' AND a.node_id IS NOT NULL AND (k.kind = 'occupied' OR a.status = 'active')""",
    """CREATE TABLE quotas (
           project_id text PRIMARY KEY REFERENCES projects,
           cpus int,
           memory_mib int,
           disk_gib int,
           gpus int,
           allocations int,
           revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now()
       )""",
    """ALTER TABLE nodes
           ADD COLUMN intent text NOT NULL DEFAULT 'ready',
           ADD COLUMN revoked_at timestamptz,
           ADD COLUMN next_public_key_pem text,
           ADD COLUMN rotation_requested_at timestamptz,
           ADD COLUMN differences jsonb NOT NULL DEFAULT '[]'""",
    "ALTER TABLE nodes DROP CONSTRAINT nodes_name_key",
    "CREATE UNIQUE INDEX node_live_name ON nodes (name) WHERE status <> 'retired'",
    """CREATE TABLE volumes (
           id text PRIMARY KEY,
           project_id text NOT NULL REFERENCES projects,
           name text NOT NULL,
           size_gib int NOT NULL,
           status text NOT NULL,
           reason text NOT NULL DEFAULT '',
           node_id text REFERENCES nodes,
           revision bigint NOT NULL DEFAULT 1,
           created_at timestamptz NOT NULL DEFAULT now(),
           updated_at timestamptz NOT NULL DEFAULT now()
       )""",
    "CREATE UNIQUE INDEX volume_live_name ON volumes (project_id, name) WHERE status <> 'deleted'",
    """CREATE TABLE volume_attachments (
           volume_id text NOT NULL REFERENCES volumes,
           allocation_id text NOT NULL REFERENCES allocations,
           path text NOT NULL,
           status text NOT NULL,
           reason text NOT NULL DEFAULT '',
           delete_volume boolean NOT NULL DEFAULT false,
           PRIMARY KEY (volume_id, allocation_id),
           UNIQUE (allocation_id, path)
       )""",
    "CREATE INDEX volumes_of_node ON volumes (node_id)",
    "ALTER TABLE node_tasks ALTER COLUMN allocation_id DROP NOT NULL, ADD COLUMN volume_id text REFERENCES volumes",
]


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
