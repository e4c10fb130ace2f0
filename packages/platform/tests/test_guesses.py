"""Who may try a password: limits of addresses and of accounts, and never a lock against the rightful person."""

from gpuaas_platform.accounts.rules.guesses import ACCOUNT_FAILURES, DAY, Allowances, Failures, Keys, Verdict, judge
from gpuaas_platform.core.turns import Rank

ALLOWANCES = Allowances.with_free(per_address=20, per_account=5)
EVE = Keys("203.0.113.66", "ada's")
ADA = Keys("192.0.2.7", "ada's")
NEIGHBOUR = Keys("203.0.113.66", "bob's")


def verdict(keys: Keys, **failures: int | tuple[int, float]) -> Verdict:
    """`pair`, `account`, `address`, `known`: how many, and how long ago."""
    names = {"pair": keys.of_pair, "account": keys.of_account, "address": keys.of_address, "known": keys.known}
    given = {names[name]: (found if isinstance(found, tuple) else (found, 0)) for name, found in failures.items()}
    return judge(keys, {key: Failures(*found) for key, found in given.items()}, ALLOWANCES)


def test_nobody_waits_who_never_failed() -> None:
    assert verdict(EVE) == Verdict(0, 0, known=False, remember=True, had_failed=False, rank=Rank.CLEAN)


def test_an_account_from_one_address_waits_longer_each_time() -> None:
    assert [verdict(EVE, pair=count, address=count).delay for count in (4, 5, 6, 7, 13, 14, 99)] == [
        0,
        2,
        4,
        8,
        512,
        900,
        900,
    ]


def test_the_rightful_person_from_another_address_does_not_wait() -> None:
    found = {EVE.of_pair: Failures(99, 0), EVE.of_address: Failures(99, 0), EVE.of_account: Failures(5_000, 0)}
    assert judge(EVE, found, ALLOWANCES).delay == 900
    assert judge(ADA, found, ALLOWANCES).delay == 0


def test_an_address_that_tries_many_accounts_waits_a_minute_at_most() -> None:
    assert [verdict(NEIGHBOUR, address=count).delay for count in (19, 20, 21, 25, 26, 10**6)] == [0, 1, 2, 32, 60, 60]


def test_who_logged_in_from_a_shared_address_does_not_wait_for_its_other_people() -> None:
    known = verdict(NEIGHBOUR, address=10**6, known=0)
    assert (known.delay, known.rank) == (0, Rank.KNOWN)
    assert known.address_delay == 60
    # One's own failures count all the same.
    assert verdict(NEIGHBOUR, address=10**6, pair=7, known=0).delay == 8
    assert verdict(NEIGHBOUR, address=10**6, known=(0, 31 * DAY)).delay == 60


def test_an_account_that_many_addresses_guess_at_leaves_each_one_guess() -> None:
    assert verdict(ADA, account=ACCOUNT_FAILURES).delay == 0
    assert verdict(ADA, account=ACCOUNT_FAILURES, pair=1).delay == 30
    assert verdict(ADA, account=ACCOUNT_FAILURES - 1, pair=1).delay == 0
    assert verdict(ADA, account=ACCOUNT_FAILURES, pair=1, known=0).delay == 0


def test_time_forgives() -> None:
    assert verdict(EVE, pair=(6, 3)).delay == 1
    assert verdict(EVE, pair=(6, 4)).delay == 0
    assert verdict(EVE, pair=(99, 3_601), address=(99, 3_601)).delay == 0
    assert verdict(EVE, pair=(99, 3_601)).rank == Rank.CLEAN


def test_a_success_is_written_once_a_day() -> None:
    assert verdict(ADA).remember
    assert not verdict(ADA, known=(0, 100)).remember
    assert verdict(ADA, known=(0, DAY + 1)).remember


def test_whoever_failed_comes_after_those_who_did_not() -> None:
    assert verdict(EVE, address=1).rank == Rank.SUSPECT
    assert verdict(EVE, pair=1, known=0).rank == Rank.SUSPECT
    assert verdict(ADA, account=99).rank == Rank.CLEAN
