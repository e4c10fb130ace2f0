"""Properties that hold in every state of an instance, also in those that no table lists."""

from hypothesis import given
from hypothesis import strategies as st

from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.operations import Kind, OperationState
from gpuaas_contract.problems import Code
from gpuaas_platform.instances.records import MemberView
from gpuaas_platform.instances.rules import actions
from gpuaas_platform.instances.rules.actions import InstanceFacts
from gpuaas_platform.operations.records import OperationView

from .platform_test_lives import (
    HEAD,
    INSTANCE_KINDS,
    LONG_AGO,
    MANIFEST,
    MEMBER_KINDS,
    NODE,
    instance_facts,
    member,
    operation,
)

KINDS = sorted({*MANIFEST.kinds, "dance"})
MEMBERS = st.sampled_from(["mem_1", "mem_2", "mem_3"])


@st.composite
def operations(draw: st.DrawFn) -> OperationView:
    """On the whole instance, on a member, or on two of which one takes over for the other."""
    target = draw(st.none() | MEMBERS)
    kind = draw(st.sampled_from(MEMBER_KINDS if target else INSTANCE_KINDS))
    other = draw(MEMBERS) if kind == Kind.REPLACE else None
    more = {"queued": draw(st.booleans()), "state": draw(st.sampled_from(OperationState))}
    return operation(kind, target, replacement_member_id=other, **more)


@st.composite
def known_facts(draw: st.DrawFn) -> InstanceFacts:
    present = draw(st.integers(0, 4))
    return instance_facts(
        *draw(st.lists(operations(), max_size=3)),
        mode=draw(st.sampled_from([None, "small", "fixed"])),
        desired_state=draw(st.sampled_from(DesiredState)),
        ended_at=draw(st.sampled_from([None, LONG_AGO])),
        deployed=draw(st.booleans()),
        last_operation=draw(st.none() | operations()),
        counts={HEAD: [1, 1], NODE: [present, draw(st.integers(0, present))]},
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


@given(known_facts())
def test_what_is_offered_for_an_instance_is_what_a_request_would_be_granted(facts: InstanceFacts) -> None:
    offered = [action.action for action in actions.instance_actions(facts)]
    accepted = {kind for kind in KINDS if kind != Kind.ADD and actions.instance_denial(facts, kind) is None}
    if any(actions.addition_denial(facts, key) is None for key in (HEAD, NODE)):
        accepted.add(Kind.ADD)
    if actions.abandon_denial(facts) is None:
        accepted.add("abandon")
    assert sorted(offered) == sorted(accepted)
    assert not (facts.ended and offered)


@given(known_facts(), members)
def test_what_is_offered_for_a_member_is_what_a_request_would_be_granted(
    facts: InstanceFacts, member: MemberView
) -> None:
    offered = [action.action for action in actions.member_actions(facts, member)]
    accepted = {kind for kind in KINDS if actions.member_denial(facts, member, kind) is None}
    if actions.forget_denial(facts, member) is None:
        accepted.add("forget")
    assert sorted(offered) == sorted(accepted)


@given(known_facts(), operations())
def test_what_is_offered_for_an_operation_is_what_a_request_would_be_granted(
    facts: InstanceFacts, row: OperationView
) -> None:
    offered = {action.action for action in actions.operation_actions(facts, row)}
    denials = {"retry": actions.retry_denial(facts, row), "cancel": actions.cancel_denial(row)}
    assert offered == {action for action, denial in denials.items() if denial is None}
    assert offered != {"retry", "cancel"}, "what can still be called off has not ended"
    if row.state not in actions.RETRIED_FROM:
        assert actions.operation_actions(None, row) == actions.operation_actions(facts, row), "the instance is not read"


@given(known_facts(), members, st.sampled_from(KINDS))
def test_what_can_be_done_at_once_can_also_be_queued(facts: InstanceFacts, member: MemberView, kind: str) -> None:
    if actions.instance_denial(facts, kind) is None:
        assert actions.instance_denial(facts, kind, queued=True) is None
    if actions.member_denial(facts, member, kind) is None:
        assert actions.member_denial(facts, member, kind, queued=True) is None


@given(known_facts(), st.sampled_from(INSTANCE_KINDS))
def test_beside_an_operation_on_the_whole_instance_only_a_decommission_is_granted(
    facts: InstanceFacts, kind: str
) -> None:
    if any(row.member_id is None for row in facts.open):
        denial = actions.instance_denial(facts, kind)
        assert denial is not None or kind == Kind.DECOMMISSION
        assert actions.addition_denial(facts, NODE) is not None


@given(known_facts(), members, st.sampled_from(KINDS))
def test_no_member_has_two_operations_at_once_except_for_its_removal(
    facts: InstanceFacts, member: MemberView, kind: str
) -> None:
    busy = any(member.id in row.member_ids for row in facts.open)
    if busy and actions.member_denial(facts, member, kind) is None:
        assert kind == Kind.REMOVE


@given(known_facts(), members, st.booleans())
def test_the_limits_of_a_component_hold(facts: InstanceFacts, member: MemberView, queued: bool) -> None:
    low, high = (2, 2) if facts.mode is not None and facts.mode.key == "small" else (1, 3)
    if member.component_key == NODE and actions.member_denial(facts, member, Kind.REMOVE, queued=queued) is None:
        assert facts.staying(NODE) - 1 >= low
    for count in (1, 2, 3):
        if actions.addition_denial(facts, NODE, count) is None:
            assert facts.present(NODE) + count <= high


@given(operations(), operations())
def test_two_operations_exclude_each_other_or_neither_does(one: OperationView, other: OperationView) -> None:
    assert actions.excludes(one, other) == actions.excludes(other, one)
    assert actions.excludes(one, one)
    if one.member_id is None:
        assert actions.excludes(one, other)


@given(known_facts(), members, st.sampled_from(KINDS))
def test_a_refusal_because_of_another_operation_names_one_that_is_open(
    facts: InstanceFacts, member: MemberView, kind: str
) -> None:
    for denial in (actions.instance_denial(facts, kind), actions.member_denial(facts, member, kind)):
        if denial is not None and denial.code == Code.OPERATION_RUNNING:
            assert denial.operation in facts.open
