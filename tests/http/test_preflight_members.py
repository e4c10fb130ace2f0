"""Preflights of requests for members: to add some, and to do something to many of them at once."""

from gpuaas_contract.bulk import MemberOperationsCreate, MembersAdd, Policy
from gpuaas_contract.findings import Severity
from gpuaas_contract.preflights import Preflight
from gpuaas_stack.settings import Settings
from tests.http.test_preflight import tables
from tests.support.lifecycle import Echo
from tests.support.world import World


def found(preflight: Preflight) -> list[tuple[str, str, str]]:
    """Whether the controller was heard of lately depends on how fast the test is."""
    others = [finding for finding in preflight.findings if finding.code != "no_controller"]
    return [(finding.severity.value, finding.pointer, finding.code) for finding in others]


async def told(echo: Echo) -> list[str]:
    """Read the instance's timeline, without the preflights themselves."""
    events = echo.world.admin.history.events(echo.id)
    return [f"{event.noun} {event.event}" async for event in events if event.noun != "preflight"]


async def test_adding_members(world: World, settings: Settings) -> None:
    head, used, free = [await world.allocation(name) for name in ("head", "used", "free")]
    echo = await Echo.deployed(world, head=head)
    await world.deploy(head=used, name="other")
    before, said = tables(settings), await told(echo)

    good = await world.admin.preflights.instance(echo.id, MembersAdd(component_key="tail", allocation_ids=[free.id]))
    assert (good.ok, good.kind, found(good)) == (True, "add", [])
    assert sorted(good.allocation_ids) == sorted([head.id, free.id]), "the machines that the add would be on"

    named = [free.id, used.id, "alc_none"]
    bad = await world.admin.preflights.instance(echo.id, MembersAdd(component_key="tail", allocation_ids=named))
    refused = [("/allocation_ids/1", "policy_not_met"), ("/allocation_ids/2", "policy_not_met")]
    assert (bad.ok, found(bad)) == (False, [(Severity.ERROR, *each) for each in refused])
    assert used.id not in bad.allocation_ids, "another app lives there"

    some = MembersAdd(component_key="tail", allocation_ids=named, policy=Policy.BEST_EFFORT)
    partly = await world.admin.preflights.instance(echo.id, some)
    assert partly.ok is True, "one of them can be added, which is what was asked for"
    pointers = [(severity, pointer) for severity, pointer, _ in found(partly)]
    assert pointers == [(Severity.WARNING, "/allocation_ids/1"), (Severity.WARNING, "/allocation_ids/2")]

    nobody = await world.admin.preflights.instance(echo.id, MembersAdd(component_key="what", allocation_ids=[free.id]))
    assert (nobody.ok, found(nobody)) == (False, [(Severity.ERROR, "", "placement_invalid")])
    wrong = MembersAdd(component_key="tail", allocation_ids=[free.id], input={"what": 1})
    assert found(await world.admin.preflights.instance(echo.id, wrong)) == [
        (Severity.ERROR, "/input", "inputs_invalid")
    ]
    assert (tables(settings), await told(echo)) == (before, said), "looking changed something"
    assert (await world.admin.instances.add_members(echo.id, "tail", [free.id])).results[0].refused is None


async def test_many_members_at_once(world: World, settings: Settings) -> None:
    head, one, two = [await world.allocation(name) for name in ("head", "one", "two")]
    echo = await Echo.deployed(world, one, two, head=head)
    first, second = await echo.tails()
    running = await echo.request("drain", first)
    before, said = tables(settings), await told(echo)

    both = [first.id, second.id]
    bad = await world.admin.preflights.instance(echo.id, MemberOperationsCreate(kind="recover", member_ids=both))
    assert (bad.ok, found(bad)) == (False, [(Severity.ERROR, "/member_ids/0", "policy_not_met")])
    assert running.id in bad.findings[0].message, "which one is in the way"
    assert sorted(bad.allocation_ids) == sorted([head.id, one.id, two.id])

    body = MemberOperationsCreate(kind="recover", member_ids=[*both, "mem_none"], policy=Policy.BEST_EFFORT)
    partly = await world.admin.preflights.instance(echo.id, body)
    assert (partly.ok, partly.kind) == (True, "recover")
    assert found(partly) == [
        (Severity.WARNING, "/member_ids/0", "operation_running"),
        (Severity.WARNING, "/member_ids/2", "not_found"),
    ]
    queued = MemberOperationsCreate(kind="recover", member_ids=both, queue=True)
    assert found(await world.admin.preflights.instance(echo.id, queued)) == []
    # A removal would pre-empt what runs; to ask what would become of it does not.
    removal = MemberOperationsCreate(kind="remove", member_ids=both)
    assert (await world.admin.preflights.instance(echo.id, removal)).ok is True
    assert (tables(settings), await told(echo)) == (before, said), "looking changed something"
    assert (await echo.operation(running.id)).state == "pending"
