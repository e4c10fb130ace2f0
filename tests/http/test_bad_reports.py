"""Reports that are refused: a stable code, nothing changed, and the operator sees why."""

import httpx
import pytest

from gpuaas_contract.changes import Change
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import OperationState, StepStatus
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.errors import ApiError, ForbiddenError, InvalidRequestError, NotFoundError, StaleLeaseError
from tests.support.controller import EchoController
from tests.support.lifecycle import Echo
from tests.support.world import World, make_key

SECRETS = {
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA",
    "a join token": "gpuaas-join-" + 30 * "x",
    "a client secret": "it is gpuaas-secret-" + 30 * "y",
    "a signed token": "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJzdmFfMSJ9.c2lnbmF0dXJlLXdpdGgtbWFueS1ieXRlcw",
    "a wrapping token": "hvs.CAESIJ0123456789abcdefghijkl",
    "a header": "Authorization: Bearer 0123456789abcdef0123456789abcdef",
}


async def refusals(world: World, instance_id: str) -> list[Change]:
    feed = world.admin.changes(since="start", instance_id=instance_id)
    found: list[Change] = []
    while (page := await feed.page(wait=0)).items:
        found += [change for change in page.items if change.event == "report_refused"]
    return found


async def told(world: World, instance_id: str, count: int) -> list[Change]:
    """The sequencer gives positions a moment after the answer."""

    async def all_there() -> list[Change] | None:
        found = await refusals(world, instance_id)
        return found if len(found) >= count else None

    found: list[Change] = await world.until(all_there, f"{count} refused reports are told")
    assert len(found) == count
    return found


async def test_what_looks_like_a_secret_is_not_kept(world: World) -> None:
    echo = await Echo.deployed(world, await world.allocation("two"), head=await world.allocation("one"))
    (tail,) = await echo.tails()
    work = await echo.controller.claim((await echo.request("drain", tail)).id)
    before = await echo.operation(work.operation_id)
    lease, operations = (work.operation_id, work.fencing_token), world.controller.operations
    for what, value in SECRETS.items():
        for refused in (
            work.step("tell", evidence={"log": ["fine", {"line": value}]}),
            work.step("tell", message=f"it said {value}"),
            operations.complete(*lease, result={value: "as a key"}),
            world.controller.members.report(tail.id, work, adapter_detail={"motd": value}),
        ):
            with pytest.raises(InvalidRequestError) as refusal:
                await refused
            assert refusal.value.code == "secret_suspected", what
            assert value not in str(refusal.value.problem.model_dump())
    after = await echo.operation(work.operation_id)
    assert (after.revision, after.steps, after.state) == (before.revision, [], OperationState.RUNNING)
    assert (await echo.member(tail.id)).adapter_detail == {}
    events = await told(world, echo.id, 4 * len(SECRETS))
    assert {(event.noun, event.resource_id) for event in events} == {("operation", work.operation_id)}
    assert "looks like a private key at /evidence/log/1/line" in events[0].message
    assert not [value for value in SECRETS.values() for event in events if value in event.message]


async def test_too_much_too_late_and_from_the_wrong_one(world: World) -> None:
    echo = await Echo.deployed(world, await world.allocation("two"), head=await world.allocation("one"))
    (tail,) = await echo.tails()
    work = await echo.controller.claim((await echo.request("drain", tail)).id)
    for size in (70_000, 10_000_000):
        with pytest.raises(InvalidRequestError) as refused:
            await work.step("tell", evidence={"log": "x" * size})
        assert refused.value.code == "too_large"
    with pytest.raises(InvalidRequestError):
        await world.controller.members.report(tail.id, work, adapter_detail={"log": "x" * 10_000_000})
    events = await told(world, echo.id, 3)
    assert [event.noun for event in events] == ["operation", "operation", "member"]

    private, public = make_key()
    account = await world.admin.service_accounts.create(
        world.project.id, "stranger", public, app_slug=await world.other_app()
    )
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as stranger:
        with pytest.raises(NotFoundError):
            await stranger.operations.complete(work.operation_id, work.fencing_token)
    # The same app, but another account than the one that holds the lease.
    twin = await world.admin.service_accounts.create(world.project.id, "twin", public, app_slug=world.app_slug)
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(twin.id, private)) as other:
        with pytest.raises(StaleLeaseError):
            await other.operations.complete(work.operation_id, work.fencing_token)
    with pytest.raises(ForbiddenError):
        await world.admin.operations.complete(work.operation_id, work.fencing_token)
    with pytest.raises(ApiError, match="removes no member"):
        await world.controller.members.report(tail.id, work, status=MemberStatus.REMOVED)
    assert (await echo.member(tail.id)).status == MemberStatus.READY
    await work.report(tail.id, MemberStatus.DRAINED)
    await work.complete()
    for late in (work.complete(), work.fail(), work.step("late", StepStatus.RUNNING), work.report_ready()):
        with pytest.raises(StaleLeaseError):
            await late
    ended = await echo.operation(work.operation_id)
    assert (ended.state, ended.steps) == (OperationState.SUCCEEDED, [])
    events = await told(world, echo.id, 11)
    words = [event.message for event in events[3:]]
    assert words[0].startswith("stranger: there is no operation")
    assert words[1].startswith("twin: this lease on")
    assert [word for word in words[4:] if "is succeeded already" in word] == words[4:]

    # Strangers of other tenants leave no words.
    tenant = await world.admin.tenants.create("far-away")
    project = await world.admin.projects.create(tenant.id, "far-away")
    await world.admin.entitlements.grant(tenant.id, world.app_slug)
    far = await world.admin.service_accounts.create(project.id, "far", public, app_slug=world.app_slug)
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(far.id, private)) as stranger:
        with pytest.raises(NotFoundError):
            await stranger.operations.complete(work.operation_id, work.fencing_token)
    async with httpx.AsyncClient(base_url=world.admin.api_url) as http:
        answer = await http.post(f"/v1/operations/{work.operation_id}/steps", content=b"x" * 3_000_000)
        assert answer.status_code == 413
    assert len(await refusals(world, echo.id)) == 11


async def test_a_tombstone_never_comes_back(world: World) -> None:
    echo = await Echo.deployed(world, await world.allocation("two"), head=await world.allocation("one"))
    (tail,) = await echo.tails()
    work = await echo.controller.claim((await echo.request("remove", tail)).id)
    await work.report(tail.id, MemberStatus.REMOVED)
    with pytest.raises(ApiError, match="add its machine again"):
        await work.report(tail.id, MemberStatus.READY)
    await work.complete()
    assert (await echo.member(tail.id)).status == MemberStatus.REMOVED
    assert isinstance(echo.controller, EchoController)
