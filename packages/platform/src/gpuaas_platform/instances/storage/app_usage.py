"""Usage that apps report. A unique key makes each record one, however often it is sent."""

from dataclasses import asdict

from gpuaas_contract.app_usage import AppUsageReport
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.instances.records import InstanceView, ReportedUsageRecord, UsageFilter


async def insert(tx: Transaction, id: str, instance: InstanceView, report: AppUsageReport) -> bool:
    """Return False where the instance has a record of that id already."""
    count = await tx.run(
        """INSERT INTO app_usage (id, tenant_id, project_id, instance_id, app_slug, record_id, work_id, subject,
                                  quantity, unit, started_at, ended_at, labels, reported_by)
           VALUES (%(id)s, %(tenant)s, %(project)s, %(instance)s, %(slug)s, %(record_id)s, %(work_id)s, %(subject)s,
                   %(quantity)s, %(unit)s, %(started_at)s, %(ended_at)s, %(labels)s, %(principal)s)
           ON CONFLICT (instance_id, record_id) DO NOTHING""",
        id=id,
        tenant=instance.tenant_id,
        project=instance.project_id,
        instance=instance.id,
        slug=instance.app_slug,
        principal=tx.principal_id,
        **report.model_dump(),
    )
    return count == 1


async def list_of(tx: Transaction, instance_id: str, record_ids: list[str]) -> list[ReportedUsageRecord]:
    return await tx.fetch_all(
        ReportedUsageRecord,
        "SELECT * FROM app_usage WHERE instance_id = %(instance)s AND record_id = ANY(%(ids)s)",
        instance=instance_id,
        ids=record_ids,
    )


async def list_matching(
    tx: Transaction, project_ids: list[str] | None, only: UsageFilter, after: str, limit: int
) -> list[ReportedUsageRecord]:
    return await tx.fetch_all(
        ReportedUsageRecord,
        """SELECT * FROM app_usage WHERE id > %(after)s
             AND (%(projects)s::text[] IS NULL OR project_id = ANY(%(projects)s))
             AND (%(instance_id)s::text IS NULL OR instance_id = %(instance_id)s)
             AND (%(app_slug)s::text IS NULL OR app_slug = %(app_slug)s)
             AND (%(subject)s::text IS NULL OR subject = %(subject)s)
             AND (%(work_id)s::text IS NULL OR work_id = %(work_id)s)
             AND (%(unit)s::text IS NULL OR unit = %(unit)s)
             AND (%(since)s::timestamptz IS NULL OR ended_at > %(since)s)
             AND (%(until)s::timestamptz IS NULL OR started_at < %(until)s)
           ORDER BY id LIMIT %(limit)s""",
        projects=project_ids,
        after=after,
        limit=limit,
        **asdict(only),
    )
