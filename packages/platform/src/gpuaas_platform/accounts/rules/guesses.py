"""How long somebody who failed has to wait before the next password is looked at."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuaas_platform.core.limits import Allowance
from gpuaas_platform.core.turns import Rank

DAY = 86_400
FORGET_SECONDS = 3_600
"""After so long without another failure, all is forgotten."""
KNOWN_DAYS = 30
"""From an address where an account logged in lately, other people's guesses do not count against it."""
ACCOUNT_FAILURES = 100
"""Failures of one account from all addresses after which an address has fewer free ones."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The counters of one attempt. The account is a keyed hash: what was typed is stored nowhere."""

    address: str
    account: str

    @property
    def of_address(self) -> str:
        return f"address/{self.address}"

    @property
    def of_account(self) -> str:
        return f"account/{self.account}"

    @property
    def of_pair(self) -> str:
        return f"pair/{self.account}/{self.address}"

    @property
    def known(self) -> str:
        return f"known/{self.account}/{self.address}"

    @property
    def counted(self) -> list[str]:
        return sorted([self.of_address, self.of_account, self.of_pair])


@dataclass(frozen=True, slots=True)
class Failures:
    count: int
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class Allowances:
    address: Allowance
    pair: Allowance
    squeezed: Allowance
    """Of a pair while its account is guessed at from many addresses. The first attempt is always free: nobody can
    lock the rightful person out from an address of their own."""

    @classmethod
    def with_free(cls, per_address: int, per_account: int) -> "Allowances":
        # Many people may share an address: it waits a minute at most, an account from there a quarter of an hour.
        return cls(Allowance(per_address, 1, 60), Allowance(per_account, 2, 900), Allowance(1, 30, 900))


@dataclass(frozen=True, slots=True)
class Verdict:
    pair_delay: float
    address_delay: float
    """Seconds that are left."""
    known: bool
    """The account logged in from this address lately."""
    remember: bool
    """A success is to be written down: it was not, or a day ago."""
    had_failed: bool
    """The account, from this address."""
    rank: Rank
    """Where many wait, those come first who logged in from here before, and those last who failed."""

    @property
    def delay(self) -> float:
        return self.pair_delay if self.known else max(self.pair_delay, self.address_delay)


def judge(keys: Keys, found: Mapping[str, Failures], allowances: Allowances, *, known: bool = False) -> Verdict:
    """Decide by what the database has of an attempt's keys whether its password is looked at."""
    remembered = found.get(keys.known)
    known = known or (remembered is not None and remembered.seconds_ago < KNOWN_DAYS * DAY)
    recent = {key: failures for key, failures in found.items() if failures.seconds_ago < FORGET_SECONDS}
    many = keys.of_account in recent and recent[keys.of_account].count >= ACCOUNT_FAILURES

    def left(key: str, allowance: Allowance) -> float:
        failures = recent.get(key)
        return 0 if failures is None else max(0, allowance.delay_after(failures.count) - failures.seconds_ago)

    had_failed = keys.of_pair in recent
    return Verdict(
        pair_delay=left(keys.of_pair, allowances.squeezed if many and not known else allowances.pair),
        address_delay=left(keys.of_address, allowances.address),
        known=known,
        remember=not known or (remembered is not None and remembered.seconds_ago > DAY),
        had_failed=had_failed,
        rank=_rank(known, had_failed, keys.of_address in recent),
    )


def _rank(known: bool, had_failed: bool, address_failed: bool) -> Rank:
    if had_failed or (address_failed and not known):
        return Rank.SUSPECT
    return Rank.KNOWN if known else Rank.CLEAN
