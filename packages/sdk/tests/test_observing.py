"""A look that finds nothing new only reads: what is known already is not sent again."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gpuaas_contract.instances import (
    Condition,
    ConditionStatus,
    DesiredState,
    Instance,
    InstanceStatus,
    Member,
    MemberStatus,
    Versions,
)
from gpuaas_sdk import GpuaasError
from gpuaas_sdk.runtime.observing import ObserveContext
from gpuaas_sdk.testing import ScriptedPlatform, problem


def condition(status: ConditionStatus = ConditionStatus.TRUE, message: str = "") -> Condition:
    return Condition(type="Works", status=status, message=message, observed_generation=1)


@pytest.fixture
def platform() -> ScriptedPlatform:
    """It answers nothing useful: whether it is asked is what counts."""
    return ScriptedPlatform(problem("not_found", 404))


@pytest.fixture
def context(platform: ScriptedPlatform) -> ObserveContext:
    known = [condition().model_copy(update={"changed_at": datetime.now(UTC)})]
    at = datetime(2030, 1, 1, tzinfo=UTC)
    stored: dict[str, Any] = {"revision": 1, "created_at": at, "updated_at": at, "correlation_id": "cor_1"}
    instance = Instance(
        **stored,
        id="ins_1",
        project_id="prj_1",
        app_slug="demo",
        app_version_id="apv_1",
        name="one",
        inputs={},
        placement_intent=[],
        desired_state=DesiredState.RUNNING,
        generation=1,
        status=InstanceStatus.RUNNING,
        conditions=known,
        versions=Versions(app="1", expected_runtime="7", observed_runtime="7"),
    )
    member = Member(
        **stored,
        id="mem_1",
        instance_id="ins_1",
        component_key="worker",
        allocation_id="alc_1",
        status=MemberStatus.READY,
        conditions=known,
        adapter_detail={"node": "a"},
    )
    return ObserveContext(platform.client(), 1, None, instance, [member])  # type: ignore[arg-type]


async def test_what_is_known_is_not_sent(platform: ScriptedPlatform, context: ObserveContext) -> None:
    said = await context.report_member("mem_1", conditions=[condition()], adapter_detail={"node": "a"})
    assert said is context.members[0]
    assert await context.report_instance(conditions=[condition()], observed_runtime="7") is context.instance
    assert platform.requests == []


async def test_what_is_taken_back_is_sent(platform: ScriptedPlatform, context: ObserveContext) -> None:
    for status in (ConditionStatus.FALSE, ConditionStatus.TRUE):
        with pytest.raises(GpuaasError):
            await context.report_member("mem_1", conditions=[condition(status)])
    assert len(platform.requests) == 2


async def test_news_are_sent(platform: ScriptedPlatform, context: ObserveContext) -> None:
    reports = [
        context.report_member("mem_1", conditions=[condition(ConditionStatus.FALSE)]),
        context.report_member("mem_1", conditions=[condition(message="other words")]),
        context.report_member("mem_1", conditions=[condition()], adapter_detail={"node": "b"}),
        context.report_member("mem_2", conditions=[condition()]),
        context.report_instance(conditions=[condition(ConditionStatus.UNKNOWN)]),
        context.report_instance(conditions=[condition()], observed_runtime="8"),
    ]
    for number, report in enumerate(reports, start=1):
        with pytest.raises(GpuaasError):
            await report
        assert len(platform.requests) == number
    assert all(isinstance(request, httpx.Request) and request.method == "POST" for request in platform.requests)
