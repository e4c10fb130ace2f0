"""OAuth 2: client credentials for service accounts, the device flow and refresh for command lines, revocation."""

import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from gpuaas_contract import ids
from gpuaas_contract.identity import Token
from gpuaas_contract.oauth import USER_CODE_ALPHABET, DeviceAuthorization, DeviceRequest
from gpuaas_contract.problems import Code
from gpuaas_contract.sessions import SessionKind
from gpuaas_contract.wire import API_PREFIX
from gpuaas_platform.accounts.records import ServiceAccountView
from gpuaas_platform.accounts.rules.device_codes import why_not
from gpuaas_platform.accounts.service.failed_logins import FailedLogins
from gpuaas_platform.accounts.service.sessions import Life, hash_secret, open_session
from gpuaas_platform.accounts.storage import service_accounts as account_store
from gpuaas_platform.accounts.storage import sessions as session_store
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import LONGEST_ID, Refusal, not_found
from gpuaas_platform.core.limits import Allowance, GrowingDelay
from gpuaas_platform.core.origins import current_origin
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.records import DeviceAuthorizationRecord, DeviceStatus, PolledDevice
from gpuaas_platform.identity.rules.policy import Caller
from gpuaas_platform.identity.service.assertions import read_part, verify_assertion
from gpuaas_platform.identity.service.tokens import AUDIENCE, TokenService
from gpuaas_platform.identity.storage import oauth as store

DEVICE_SECONDS = 600
POLL_SECONDS = 5
SLOWER_BY = 5
USER_CODE_LENGTH = 8
CLIENT_FAILED, CODE_FAILED = "auth.client_failed", "auth.device_code_failed"
# A secret or key cannot be guessed: this slows down what asks with a wrong one again and again.
CLIENT_ALLOWANCE = Allowance(20, 1, 60)
# A code is short. Whoever types one is logged in, so that the wait is theirs alone.
CODE_ALLOWANCE = Allowance(10, 2, 300)


def _invalid_grant(detail: str) -> Refusal:
    return Refusal(Code.INVALID_GRANT, detail)


def normal_user_code(typed: str) -> str:
    """As a person may type it. Nothing but the letters of codes gets any further."""
    letters = "".join(character for character in typed.upper() if character in USER_CODE_ALPHABET)
    return f"{letters[: USER_CODE_LENGTH // 2]}-{letters[USER_CODE_LENGTH // 2 :]}"


class OAuthService:
    def __init__(
        self,
        database: Database,
        tokens: TokenService,
        public_url: str,
        failures: FailedLogins,
        terminal_life: Life,
        refresh_grace_seconds: float,
    ) -> None:
        self._database = database
        self._terminal_life = terminal_life
        self._grace = refresh_grace_seconds
        self._tokens = tokens
        self._failures = failures
        self._client_delay = GrowingDelay(CLIENT_ALLOWANCE, "of this service account from this address")
        self._code_delay = GrowingDelay(CODE_ALLOWANCE, "to type a code")
        self.public_url = public_url.rstrip("/")
        self._audiences = [AUDIENCE, self.public_url, f"{self.public_url}{API_PREFIX}/oauth/token"]
        """Programs that know OAuth only name the token endpoint or the issuer; our own say who we are."""

    # Service accounts

    async def client_with_assertion(self, assertion: str, correlation_id: str) -> Token:
        """A private-key JWT (RFC 7523): each assertion works once."""
        account_id = str(read_part(assertion, 1).get("sub"))
        with self._slowed(account_id, correlation_id):
            return await self._client_with_assertion(account_id, assertion)

    async def client_with_secret(self, account_id: str, secret: str, correlation_id: str) -> Token:
        with self._slowed(account_id, correlation_id):
            return await self._client_with_secret(account_id, secret)

    @contextmanager
    def _slowed(self, account_id: str, correlation_id: str) -> Iterator[None]:
        """Count and audit failures of an account from this address; a neighbour's never count."""
        key = f"{current_origin.get().group}/{account_id[:LONGEST_ID]}"
        target = account_id if ids.is_id(account_id, ids.SERVICE_ACCOUNT) else self._failures.name(account_id)
        limited = True
        try:
            self._client_delay.check(key)
            limited = False
            yield
        except Refusal as refusal:
            if limited or refusal.status == 401:
                self._failures.note(CLIENT_FAILED, target, correlation_id, limited=limited)
            if not limited and refusal.status == 401:
                self._client_delay.failed(key)
            raise
        self._client_delay.succeeded(key)

    async def _client_with_assertion(self, account_id: str, assertion: str) -> Token:
        kid = read_part(assertion, 0).get("kid")
        async with self._database.system_transaction() as tx:
            account = await _get_account(tx, account_id)
            keys = [
                (key.id, key.public_key_pem)
                for key in await account_store.list_keys(tx, account_id)
                if key.public_key_pem is not None and kid in (None, key.kid, key.id)
            ]
            public_keys = [pem for _, pem in keys]
            number = await verify_assertion(tx, assertion, public_keys, account_id, self._audiences)
            await account_store.key_was_used(tx, keys[number][0])
        return await self._tokens.issue(account_id, account.epoch)

    async def _client_with_secret(self, account_id: str, secret: str) -> Token:
        wanted = hash_secret(secret)
        async with self._database.system_transaction() as tx:
            account = await _get_account(tx, account_id)
            for key in await account_store.list_keys(tx, account_id):
                if key.secret_hash is not None and hmac.compare_digest(key.secret_hash, wanted):
                    await account_store.key_was_used(tx, key.id)
                    break
            else:
                raise Refusal(Code.INVALID_CREDENTIALS, "this service account has no such secret")
        return await self._tokens.issue(account_id, account.epoch)

    # The device flow (RFC 8628)

    async def start_device(self, client_id: str) -> DeviceAuthorization:
        device_code = secrets.token_urlsafe(32)
        letters = "".join(secrets.choice(USER_CODE_ALPHABET) for _ in range(USER_CODE_LENGTH))
        user_code = normal_user_code(letters)
        async with self._database.system_transaction() as tx:
            row = await store.insert_device(
                tx,
                ids.new_id(ids.DEVICE_AUTHORIZATION),
                hash_secret(device_code),
                user_code,
                client_id,
                current_origin.get().address,
                seconds=DEVICE_SECONDS,
                poll=POLL_SECONDS,
            )
        if row is None:
            raise Refusal(Code.UNAVAILABLE, "this code is taken; ask again", retry_after=1)
        uri = f"{self.public_url}/device"
        return DeviceAuthorization(
            device_code=device_code,
            user_code=user_code,
            verification_uri=uri,
            verification_uri_complete=f"{uri}?user_code={user_code}",
            expires_in=DEVICE_SECONDS,
            interval=POLL_SECONDS,
        )

    async def exchange_device(self, client_id: str, device_code: str, correlation_id: str) -> Token:
        async with self._database.system_transaction(correlation_id) as tx:
            row = await store.lock_device(tx, hash_secret(device_code))
            refusal = _device_refusal(row, client_id)
            if row is not None and refusal is not None:
                # The refusal comes after the transaction: that it was asked is to be remembered.
                slower = SLOWER_BY if refusal.code == Code.SLOW_DOWN else 0
                await store.device_was_polled(tx, row.id, slower_by=slower)
        if refusal is not None:
            raise refusal
        assert row is not None
        # An approval names its user.
        assert row.user_id is not None
        assert row.epoch is not None
        session_id, refresh_token = ids.new_id(ids.SESSION), secrets.token_urlsafe(32)
        token = await self._tokens.issue(row.user_id, row.epoch, session_id)
        async with self._database.transaction(row.user_id, correlation_id) as tx:
            if not await store.use_device(tx, row.id):
                raise _invalid_grant("this device code was used before; start again")
            kind, life = SessionKind.DEVICE, self._terminal_life
            await open_session(tx, session_id, row.user_id, row.epoch, kind, life, client_id)
            await store.insert_refresh_token(tx, hash_secret(refresh_token), session_id)
        return token.model_copy(update={"refresh_token": refresh_token})

    @contextmanager
    def typing_code(self, caller: Caller, correlation_id: str) -> Iterator[None]:
        """Count a code that does not exist against whoever typed it."""
        try:
            self._code_delay.check(caller.id)
            yield
        except Refusal as refusal:
            if refusal.code in {Code.NOT_FOUND, Code.RATE_LIMITED}:
                limited = refusal.code == Code.RATE_LIMITED
                self._failures.note(CODE_FAILED, caller.id, correlation_id, limited=limited)
                if not limited:
                    self._code_delay.failed(caller.id)
            raise

    # Refresh and revocation

    async def refresh(self, refresh_token: str, correlation_id: str) -> Token:
        """Sign first, then take the token: an answer that cannot be given must not cost the login.

        A token that was used a moment ago works again: two commands may have read it at once, or the answer to the
        first got lost. After that, two have it, and one of them is not who we gave it to."""
        token_hash = hash_secret(refresh_token)
        async with self._database.system_transaction(correlation_id) as tx:
            row = await store.lock_refresh_token(tx, token_hash)
        if row is None or not row.live:
            raise _invalid_grant("this refresh token is unknown, or its login is over; log in again")
        token = await self._tokens.issue(row.user_id, row.epoch, row.session_id)
        following = secrets.token_urlsafe(32)
        async with self._database.transaction(row.user_id, correlation_id) as tx:
            now = await store.lock_refresh_token(tx, token_hash)
            used_ago = None if now is None else now.used_seconds_ago
            used_before = used_ago is not None and used_ago > self._grace
            if used_before:
                # The login ends for both.
                await session_store.delete(tx, row.session_id, row.user_id)
                detail = {"session_id": row.session_id, "client": row.client}
                await tx.audit("auth.refresh_token_reused", row.user_id, outcome="denied", detail=detail)
            elif now is not None:
                if used_ago is None:
                    await store.use_refresh_token(tx, token_hash)
                else:
                    detail = {"session_id": row.session_id, "client": row.client}
                    await tx.audit("auth.refresh_token_repeated", row.user_id, detail=detail)
                await store.insert_refresh_token(tx, hash_secret(following), row.session_id)
                await session_store.touch(tx, row.session_id)
        if used_before or now is None:
            raise _invalid_grant("this refresh token was used before; its login is ended, log in again")
        return token.model_copy(update={"refresh_token": following})

    async def revoke(self, token: str, correlation_id: str) -> None:
        """RFC 7009: the login behind a token of either kind ends. What is unknown is as good as revoked."""
        if token.count(".") == 2:
            await self._revoke_access_token(token, correlation_id)
            return
        async with self._database.system_transaction(correlation_id) as tx:
            row = await store.lock_refresh_token(tx, hash_secret(token))
        if row is not None:
            await self._end(row.session_id, row.user_id, correlation_id)

    async def _revoke_access_token(self, token: str, correlation_id: str) -> None:
        try:
            claims = await self._tokens.verify(token)
        except Refusal as refusal:
            if refusal.code == Code.UNAUTHENTICATED:
                return
            raise
        if "sid" not in claims:
            detail = "tokens of service accounts end by themselves; disable the account or revoke its key"
            raise Refusal(Code.UNSUPPORTED_TOKEN_TYPE, detail)
        await self._end(str(claims["sid"]), claims["sub"], correlation_id)

    async def _end(self, session_id: str, user_id: str, correlation_id: str) -> None:
        async with self._database.transaction(user_id, correlation_id) as tx:
            if await session_store.delete(tx, session_id, user_id) is not None:
                await tx.audit("auth.logout", user_id, detail={"session_id": session_id})


async def _get_account(tx: Transaction, account_id: str) -> ServiceAccountView:
    account = await account_store.get(tx, account_id)
    if account is None or account.disabled:
        raise Refusal(Code.INVALID_CREDENTIALS, "this service account cannot log in")
    return account


def _device_refusal(row: PolledDevice | None, client_id: str) -> Refusal | None:
    if row is None or row.client_id != client_id:
        return _invalid_grant("this device code is unknown, or was used before; start again")
    if row.expired:
        return Refusal(Code.EXPIRED_TOKEN, "nobody approved in time; start again")
    if row.status == DeviceStatus.DENIED or (row.status == DeviceStatus.APPROVED and row.user_gone):
        return Refusal(Code.ACCESS_DENIED, "the login was denied")
    if row.status == DeviceStatus.APPROVED:
        return None
    if row.too_soon:
        return Refusal(Code.SLOW_DOWN, f"ask at most once in {row.poll_seconds + SLOWER_BY} seconds")
    return Refusal(Code.AUTHORIZATION_PENDING, "nobody has approved yet; ask again")


async def get_device_request(tx: Transaction, user_code: str) -> DeviceRequest:
    return to_wire(
        DeviceRequest, _known(await store.get_device_by_user_code(tx, normal_user_code(user_code)), user_code)
    )


async def look_at_device(tx: Transaction, caller: Caller, user_code: str) -> DeviceRequest:
    """Return a request that the caller can decide on; refuse in words where it is decided already."""
    row = await store.get_device_by_user_code(tx, normal_user_code(user_code))
    return to_wire(DeviceRequest, _undecided(_known(row, user_code), caller))


async def decide_device(tx: Transaction, caller: Caller, user_code: str, status: DeviceStatus) -> DeviceRequest:
    row = _known(await store.lock_device_by_user_code(tx, normal_user_code(user_code)), user_code)
    tx.match(row)
    _undecided(row, caller)
    row = await store.decide_device(tx, row.id, status, caller.id)
    detail = {"client_id": row.client_id, "address": row.address}
    await tx.audit(f"auth.device_{status.value}", row.id, detail=detail)
    return to_wire(DeviceRequest, row)


def _known(row: DeviceAuthorizationRecord | None, user_code: str) -> DeviceAuthorizationRecord:
    if row is None:
        raise not_found("login with the code", user_code)
    if row.used_at is not None or row.expired:
        raise Refusal(Code.NOT_FOUND, why_not(row, "") or "")
    return row


def _undecided(row: DeviceAuthorizationRecord, caller: Caller) -> DeviceAuthorizationRecord:
    if (reason := why_not(row, caller.id)) is not None:
        raise Refusal(Code.INVALID_STATE, reason)
    return row
