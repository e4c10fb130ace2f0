"""Looking at a password: who may try, in which order, and what a failure costs."""

import time
from collections import OrderedDict
from collections.abc import Callable

from gpuaas_contract.problems import Code
from gpuaas_platform.accounts.records import UserRecord
from gpuaas_platform.accounts.rules.guesses import Allowances, Failures, Keys, Verdict, judge
from gpuaas_platform.accounts.service import passwords
from gpuaas_platform.accounts.service.failed_logins import FailedLogins
from gpuaas_platform.accounts.storage import guesses as store
from gpuaas_platform.accounts.storage import users as user_store
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.kept_keys import Fingerprints
from gpuaas_platform.core.limits import MOST_KEYS, RateLimit, slow_down
from gpuaas_platform.core.origins import current_origin
from gpuaas_platform.identity.rules.policy import Caller

LOOKUPS_PER_SECOND = 5
LOGIN_FAILED = "auth.login_failed"
CONFIRM_FAILED = "auth.password_confirm_failed"


class Blocked:
    """Until when keys have to wait, as far as this process knows: a flood is refused without asking the database."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._lookups = RateLimit(LOOKUPS_PER_SECOND, 2 * LOOKUPS_PER_SECOND, clock)

    def note(self, keys: Keys, verdict: Verdict) -> None:
        if verdict.known:
            self._known.pop(keys.known, None)
            self._known[keys.known] = None
            while len(self._known) > MOST_KEYS:
                self._known.popitem(last=False)
        for key, seconds in ((keys.of_pair, verdict.pair_delay), (keys.of_address, verdict.address_delay)):
            if seconds:
                self._until.pop(key, None)
                self._until[key] = self._clock() + seconds
        while len(self._until) > MOST_KEYS:
            self._until.popitem(last=False)

    def check_early(self, keys: Keys) -> None:
        """Refuse what is known to wait. From an address that waits somebody may be let in whom only the database
        knows: it is asked, a few times a second."""
        self.check(keys.of_pair)
        if self._left(keys.of_address) > 0 and keys.known not in self._known:
            try:
                self._lookups.take(keys.address)
            except Refusal:
                raise _slow_down(self._left(keys.of_address)) from None

    def check(self, key: str) -> None:
        if (left := self._left(key)) > 0:
            raise _slow_down(left)

    def _left(self, key: str) -> float:
        return self._until.get(key, 0.0) - self._clock()


class Logins:
    """Counts are in the database, for all processes. It is written to only after a password was hashed."""

    def __init__(
        self,
        database: Database,
        fingerprints: Fingerprints,
        failures: FailedLogins,
        limit: RateLimit,
        allowances: Allowances,
    ) -> None:
        self._database = database
        self._fingerprints = fingerprints
        self._failures = failures
        self._limit = limit
        self._allowances = allowances
        self._blocked = Blocked()

    async def check_password(self, email: str, password: str, correlation_id: str) -> UserRecord:
        """Return the user. Unknown e-mails take the same way as known ones: the same limits, statements and hash."""
        account = email.strip().lower()
        keys = self._keys(account)
        target = self._failures.name(account)
        try:
            self._blocked.check_early(keys)
            self._limit.take(f"{keys.address}/{keys.account}")
            async with self._database.reading("platform", correlation_id) as tx:
                verdict = self._judge(keys, await store.read(tx, keys))
                user = await user_store.get_by_email(tx, account)
            present_hash = user.password_hash if user else passwords.nobodys_hash()
            right = await self._is_password(keys, verdict, present_hash, password)
        except Refusal:
            self._failures.note(LOGIN_FAILED, target, correlation_id, limited=True)
            raise
        if user is None or not right or user.disabled:
            await self._failed(keys, verdict)
            self._failures.note(LOGIN_FAILED, user.id if user else target, correlation_id)
            raise Refusal(Code.INVALID_CREDENTIALS, "this e-mail and password do not belong together")
        await self._succeeded(keys, verdict)
        return user

    async def confirm(self, caller: Caller, password: str, correlation_id: str) -> bool:
        """Whether a person who is logged in knows the password; guesses here count like those at the log-in."""
        keys = self._keys(caller.name.lower())
        try:
            self._blocked.check_early(keys)
            self._limit.take(f"{keys.address}/{keys.account}")
            async with self._database.reading(caller.id, correlation_id) as tx:
                verdict = self._judge(keys, await store.read(tx, keys))
                user = await user_store.get(tx, caller.id)
            right = user is not None and await self._is_password(keys, verdict, user.password_hash, password)
        except Refusal:
            self._failures.note(CONFIRM_FAILED, caller.id, correlation_id, limited=True)
            raise
        if not right:
            await self._failed(keys, verdict)
            self._failures.note(CONFIRM_FAILED, caller.id, correlation_id)
        return right

    def _keys(self, account: str) -> Keys:
        return Keys(current_origin.get().group, self._fingerprints.of_text(account)[:32])

    def _judge(self, keys: Keys, found: dict[str, Failures]) -> Verdict:
        verdict = judge(keys, found, self._allowances)
        self._blocked.note(keys, verdict)
        if verdict.delay:
            raise _slow_down(verdict.delay)
        return verdict

    async def _is_password(self, keys: Keys, verdict: Verdict, password_hash: str, password: str) -> bool:
        async with passwords.turn(verdict.rank):
            # Others of the same address may have failed while this one waited.
            self._blocked.check(keys.of_pair)
            if not verdict.known:
                self._blocked.check(keys.of_address)
            return await passwords.is_password(password_hash, password)

    async def _failed(self, keys: Keys, verdict: Verdict) -> None:
        async with self._database.system_transaction() as tx:
            found = await store.count(tx, keys)
        self._blocked.note(keys, judge(keys, found, self._allowances, known=verdict.known))

    async def _succeeded(self, keys: Keys, verdict: Verdict) -> None:
        if verdict.had_failed or verdict.remember:
            async with self._database.system_transaction() as tx:
                await store.forgive(tx, keys, had_failed=verdict.had_failed)


def _slow_down(seconds: float) -> Refusal:
    return slow_down(seconds, "to log in from this address")
