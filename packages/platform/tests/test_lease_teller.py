"""One link tells its agent of every change of leases, and of nothing twice."""

from gpuaas_platform.access.records import LeasePrincipalRecord
from gpuaas_platform.access.service.leases import LeaseTeller


def row(allocation_id: str, principal: str, login: str = "root", *, told: bool = False) -> LeasePrincipalRecord:
    return LeasePrincipalRecord(allocation_id=allocation_id, principal=principal, login=login, told=told)


def test_the_first_message_is_sent_also_where_nobody_may_enter() -> None:
    teller = LeaseTeller()
    message = teller.next_message([])
    assert message is not None
    assert (message.sequence, message.machines) == (1, {}), "an agent may have kept somebody from before"
    assert teller.next_message([]) is None


def test_the_same_is_not_said_again_and_a_confirmation_counts_for_what_it_names() -> None:
    teller = LeaseTeller()
    one, two = row("alc_1", "op_1/7"), row("alc_1", "op_2/8", "gpuaas-observer")
    first = teller.next_message([one])
    assert first is not None
    assert teller.next_message([one]) is None, "it is on its way"
    second = teller.next_message([one, two])
    assert second is not None
    assert second.machines == {"alc_1": {"root": ["op_1/7"], "gpuaas-observer": ["op_2/8"]}}
    assert teller.heard(first.sequence) == [("alc_1", "op_1/7")]
    assert teller.heard(second.sequence) == [("alc_1", "op_1/7"), ("alc_1", "op_2/8")]
    assert teller.heard(second.sequence) == [], "once"
    assert teller.heard(99) == []


def test_who_was_shut_out_and_let_in_again_unseen_is_confirmed_too() -> None:
    """Nothing has changed for the agent, and somebody waits to hear that."""
    teller = LeaseTeller()
    first = teller.next_message([row("alc_1", "op_1/7")])
    assert first is not None
    assert teller.heard(first.sequence)
    again = teller.next_message([row("alc_1", "op_1/7", told=False)])
    assert again is not None
    assert again.machines == first.machines
    assert teller.heard(again.sequence) == [("alc_1", "op_1/7")]
    assert teller.next_message([row("alc_1", "op_1/7", told=True)]) is None
