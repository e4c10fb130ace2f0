"""What holds in every state that an instance can be in, also in those that no table lists."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.operations import Kind, OperationState
from gpuaas_contract.problems import Code
from gpuaas_platform.instances.rules import actions
from gpuaas_platform.instances.rules.actions import Life

from .platform_test_lives import HEAD, INSTANCE_KINDS, MANIFEST, MEMBER_KINDS, NODE, life, member, operation

KINDS = sorted({*MANIFEST.kinds, "dance"})
MEMBERS = st.sampled_from(["mem_1", "mem_2", "mem_3"])


@st.composite
def operations(draw: st.DrawFn) -> dict[str, Any]:
    """On the whole instance, on a member, or on two of which one takes over for the other."""
    target = draw(st.none() | MEMBERS)
    kind = draw(st.sampled_from(MEMBER_KINDS if target else INSTANCE_KINDS))
    other = draw(MEMBERS) if kind == Kind.REPLACE else None
    more = {"queued": draw(st.booleans()), "state": draw(st.sampled_from(OperationState))}
    return operation(kind, target, replacement_member_id=other, **more)


@st.composite
def lives(draw: st.DrawFn) -> Life:
    present = draw(st.integers(0, 4))
    return life(
        *draw(st.lists(operations(), max_size=3)),
        mode=draw(st.sampled_from([None, "small", "fixed"])),
        desired_state=draw(st.sampled_from(DesiredState)),
        ended_at=draw(st.sampled_from([None, "2030-01-01"])),
        deployed=draw(st.booleans()),
        last_operation=draw(st.none() | operations()),
        counts={HEAD: (1, 1), NODE: (present, draw(st.integers(0, present)))},
    )


members = st.builds(
    member,
    st.sampled_from(MemberStatus),
    id=MEMBERS,
    component_key=st.sampled_from([HEAD, NODE]),
    replaces_member_id=st.sampled_from([None, "mem_0"]),
    last_kind=st.sampled_from(Kind),
    last_state=st.sampled_from(OperationState),
)


@given(lives())
def test_what_is_offered_for_an_instance_is_what_a_request_would_be_granted(life: Life) -> None:
    offered = [action.action for action in actions.instance_actions(life)]
    accepted = {kind for kind in KINDS if kind != Kind.ADD and actions.instance_denial(life, kind) is None}
    if any(actions.addition_denial(life, key) is None for key in (HEAD, NODE)):
        accepted.add(Kind.ADD)
    if actions.abandon_denial(life) is None:
        accepted.add("abandon")
    assert sorted(offered) == sorted(accepted)
    assert not (life.ended and offered)


@given(lives(), members)
def test_what_is_offered_for_a_member_is_what_a_request_would_be_granted(life: Life, member: dict[str, Any]) -> None:
    offered = [action.action for action in actions.member_actions(life, member)]
    accepted = {kind for kind in KINDS if actions.member_denial(life, member, kind) is None}
    if actions.forget_denial(life, member) is None:
        accepted.add("forget")
    assert sorted(offered) == sorted(accepted)


@given(lives(), operations())
def test_what_is_offered_for_an_operation_is_what_a_request_would_be_granted(life: Life, row: dict[str, Any]) -> None:
    offered = {action.action for action in actions.operation_actions(life, row)}
    denials = {"retry": actions.retry_denial(life, row), "cancel": actions.cancel_denial(row)}
    assert offered == {action for action, denial in denials.items() if denial is None}
    assert offered != {"retry", "cancel"}, "what can still be called off has not ended"
    if row["state"] not in actions.RETRIED_FROM:
        assert actions.operation_actions(None, row) == actions.operation_actions(life, row), "the instance is not read"


@given(lives(), members, st.sampled_from(KINDS))
def test_what_can_be_done_at_once_can_also_be_queued(life: Life, member: dict[str, Any], kind: str) -> None:
    if actions.instance_denial(life, kind) is None:
        assert actions.instance_denial(life, kind, queued=True) is None
    if actions.member_denial(life, member, kind) is None:
        assert actions.member_denial(life, member, kind, queued=True) is None


@given(lives(), st.sampled_from(INSTANCE_KINDS))
def test_beside_an_operation_on_the_whole_instance_only_a_decommission_is_granted(life: Life, kind: str) -> None:
    if any(row["member_id"] is None for row in life.open):
        denial = actions.instance_denial(life, kind)
        assert denial is not None or kind == Kind.DECOMMISSION
        assert actions.addition_denial(life, NODE) is not None


@given(lives(), members, st.sampled_from(KINDS))
def test_no_member_has_two_operations_at_once_except_for_its_removal(
    life: Life, member: dict[str, Any], kind: str
) -> None:
    busy = any(member["id"] in {row["member_id"], row["replacement_member_id"]} for row in life.open)
    if busy and actions.member_denial(life, member, kind) is None:
        assert kind == Kind.REMOVE


@given(lives(), members, st.booleans())
def test_the_limits_of_a_component_hold(life: Life, member: dict[str, Any], queued: bool) -> None:
    low, high = (2, 2) if life.mode is not None and life.mode.key == "small" else (1, 3)
    if member["component_key"] == NODE and actions.member_denial(life, member, Kind.REMOVE, queued=queued) is None:
        assert life.staying(NODE) - 1 >= low
    for count in (1, 2, 3):
        if actions.addition_denial(life, NODE, count) is None:
            assert life.present(NODE) + count <= high


@given(operations(), operations())
def test_two_operations_exclude_each_other_or_neither_does(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert actions.excludes(one, other) == actions.excludes(other, one)
    assert actions.excludes(one, one)
    if one["member_id"] is None:
        assert actions.excludes(one, other)


@given(lives(), members, st.sampled_from(KINDS))
def test_a_refusal_because_of_another_operation_names_one_that_is_open(
    life: Life, member: dict[str, Any], kind: str
) -> None:
    for denial in (actions.instance_denial(life, kind), actions.member_denial(life, member, kind)):
        if denial is not None and denial.code == Code.OPERATION_RUNNING:
            assert denial.operation in life.open
