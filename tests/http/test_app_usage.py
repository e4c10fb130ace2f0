"""Usage that an app reports: each record counts once, whoever sends it how often."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpuaas_contract.app_usage import AppUsageOutcome, AppUsageReport
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.errors import ForbiddenError, InvalidRequestError, NotFoundError
from gpuaas_stack.settings import Settings
from tests.support.database import audited
from tests.support.leases import decommission
from tests.support.world import World, make_key


def record(record_id: str, **changes: Any) -> AppUsageReport:
    now = datetime.now(UTC).replace(microsecond=0)
    fields = {
        "record_id": record_id,
        "work_id": f"work-{record_id}",
        "subject": "ada",
        "quantity": "12.5",
        "unit": "gpu_seconds",
        "started_at": now,
        "ended_at": now,
        "labels": {"queue": "short"},
    }
    return AppUsageReport.model_validate(fields | changes)


async def test_a_record_counts_once(world: World, settings: Settings) -> None:
    instance = await world.deploy(head=await world.allocation())
    usage, one = world.controller.app_usage, record("1")
    answer = await usage.report(instance.id, [one, record("2"), one])
    outcomes = [AppUsageOutcome.ACCEPTED, AppUsageOutcome.ACCEPTED, AppUsageOutcome.KNOWN]
    assert [result.outcome for result in answer.results] == outcomes
    assert answer.accepted == 2
    answers = await asyncio.gather(*(usage.report(instance.id, [one, record("3")]) for _ in range(6)))
    assert sum(answer.accepted for answer in answers) <= 6
    shown = await world.admin.app_usage.list(instance_id=instance.id).all()
    assert sorted(found.record_id for found in shown) == ["1", "2", "3"]
    assert (shown[0].quantity, shown[0].labels, shown[0].reported_by) == (
        Decimal("12.5"),
        {"queue": "short"},
        world.account.id,
    )
    assert audited(settings, "app_usage.report", world.account.id)


async def test_other_content_and_impossible_times_are_refused_one_by_one(world: World) -> None:
    instance = await world.deploy(head=await world.allocation())
    usage, one = world.controller.app_usage, record("1")
    await usage.report(instance.id, [one])
    ahead = datetime.now(UTC) + timedelta(hours=1)
    before = datetime.now(UTC) - timedelta(days=1)
    answer = await usage.report(
        instance.id,
        [
            one.model_copy(update={"quantity": Decimal(7)}),
            record("2", ended_at=ahead),
            record("3", started_at=before, ended_at=before),
            record("4"),
        ],
    )
    assert [result.outcome for result in answer.results] == ["conflict", "refused", "refused", "accepted"]
    assert "another quantity" in answer.results[0].detail
    assert [(r.record_id, r.quantity) async for r in world.admin.app_usage.list(instance_id=instance.id)] == [
        ("1", Decimal("12.5")),
        ("4", Decimal("12.5")),
    ]
    with pytest.raises(ValueError, match="ended before it started"):
        record("5", ended_at=before)
    with pytest.raises(ValueError, match="at most 1000"):
        await usage.report(instance.id, [record(str(number)) for number in range(1001)])
    with pytest.raises(InvalidRequestError):
        await world.admin.app_usage.list(subject="x" * 1000).all()


@pytest.mark.own_platform("it counts the usage of all projects")
async def test_usage_may_come_late_and_only_from_the_app(world: World) -> None:
    instance = await world.deploy(head=await world.allocation())
    await decommission(world, instance.id)
    answer = await world.controller.app_usage.report(instance.id, [record("late", subject="grace")])
    assert answer.accepted == 1, "no lease and no live instance is needed"
    with pytest.raises(ForbiddenError):
        await world.admin.app_usage.report(instance.id, [record("by-hand")])
    private, public = make_key()
    account = await world.admin.service_accounts.create(
        world.project.id, "stranger", public, app_slug=await world.other_app()
    )
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as stranger:
        with pytest.raises(NotFoundError):
            await stranger.app_usage.report(instance.id, [record("not-mine")])
        assert await stranger.app_usage.list(project_id=world.project.id).all() == [], "another app's is not shown"
    other = await world.admin.projects.create(world.tenant.id, "elsewhere")
    private, public = make_key()
    account = await world.admin.service_accounts.create(other.id, "same-app", public, app_slug=world.app_slug)
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as outside:
        with pytest.raises(NotFoundError):
            await outside.app_usage.report(instance.id, [record("outside")])
    found = world.admin.app_usage
    now = datetime.now(UTC)
    assert len(await found.list(subject="grace", unit="gpu_seconds", since=now - timedelta(hours=1)).all()) == 1
    assert await found.list(subject="ada").all() == []
    assert await found.list(until=now - timedelta(hours=1)).all() == []
    assert len(await found.list(work_id="work-late", app_slug=world.app_slug).all()) == 1
