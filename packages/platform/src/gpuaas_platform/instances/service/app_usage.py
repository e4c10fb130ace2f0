"""Usage that apps report against their instances.

It needs the app's own service account and no lease: usage is reported after the fact, also of an instance that is
gone, and a record counts once whoever sends it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuaas_contract import ids
from gpuaas_contract.app_usage import (
    AppUsageAnswer,
    AppUsageBatch,
    AppUsageOutcome,
    AppUsagePage,
    AppUsageRecord,
    AppUsageReport,
    AppUsageResult,
)
from gpuaas_contract.events import AppUsageEvent
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import Subject, to_wire
from gpuaas_platform.identity.rules.policy import CONTROLLER, Caller, Permission
from gpuaas_platform.identity.service.tenants import visible_projects
from gpuaas_platform.instances.records import InstanceView, UsageFilter
from gpuaas_platform.instances.service.instances import require_instance
from gpuaas_platform.instances.storage import app_usage as store

CLOCK_SKEW = timedelta(minutes=5)
"""So far ahead of ours may the clock of an app's machines be."""


async def report_usage(tx: Transaction, caller: Caller, instance_id: str, body: AppUsageBatch) -> AppUsageAnswer:
    instance = await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK)
    # In one order, so that two reports of the same records wait for each other and not both.
    outcomes = {
        number: await _take(tx, instance, record)
        for number, record in sorted(enumerate(body.records), key=lambda item: item[1].record_id)
    }
    results = [outcomes[number] for number in range(len(body.records))]
    accepted = sum(result.outcome == AppUsageOutcome.ACCEPTED for result in results)
    if accepted:
        row = Subject(instance_id, revision=1)
        message = f"usage of {accepted} records reported"
        await tx.changed(
            AppUsageEvent.REPORTED, row, message=message, project_id=instance.project_id, instance_id=instance_id
        )
        detail = {"accepted": accepted, "records": len(results)}
        await tx.audit("app_usage.report", instance_id, project_id=instance.project_id, detail=detail)
    return AppUsageAnswer(accepted=accepted, results=results)


async def _take(tx: Transaction, instance: InstanceView, record: AppUsageReport) -> AppUsageResult:
    def result(outcome: AppUsageOutcome, detail: str = "") -> AppUsageResult:
        return AppUsageResult(record_id=record.record_id, outcome=outcome, detail=detail)

    if record.ended_at > datetime.now(UTC) + CLOCK_SKEW:
        return result(AppUsageOutcome.REFUSED, "it ends in the future: report what was used, when it was")
    if record.ended_at < instance.created_at - CLOCK_SKEW:
        return result(AppUsageOutcome.REFUSED, "it ended before the instance was there")
    if await store.insert(tx, ids.new_id(ids.APP_USAGE), instance, record):
        return result(AppUsageOutcome.ACCEPTED)
    (known,) = await store.list_of(tx, instance.id, [record.record_id])
    different = [name for name, value in record.model_dump().items() if getattr(known, name) != value]
    if different:
        detail = f"{record.record_id} was accepted with another {', '.join(different)}; give a correction its own id"
        return result(AppUsageOutcome.CONFLICT, detail)
    return result(AppUsageOutcome.KNOWN)


async def list_usage(
    tx: Transaction, caller: Caller, project_id: str | None, only: UsageFilter, cursor: str | None, limit: int
) -> AppUsagePage:
    projects = await visible_projects(tx, caller, project_id, Permission.USAGE_READ)
    if only.instance_id is not None:
        await require_instance(tx, caller, only.instance_id, Permission.USAGE_READ)
    if all(grant.role == CONTROLLER for grant in caller.grants):
        only = replace(only, app_slug=caller.app_slug)
    rows, after = cut_page(await store.list_matching(tx, projects, only, decode_cursor(cursor), limit + 1), limit)
    return AppUsagePage(items=[to_wire(AppUsageRecord, row) for row in rows], next_cursor=after)
