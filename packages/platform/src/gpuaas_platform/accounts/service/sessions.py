"""Logins of people: opening, using, listing and ending them."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from gpuaas_contract import ids
from gpuaas_contract.identity import LoginRequest, Token
from gpuaas_contract.sessions import CurrentSession, Session, SessionKind, SessionPage
from gpuaas_platform.accounts.records import NewSession
from gpuaas_platform.accounts.service.logins import Logins
from gpuaas_platform.accounts.storage import sessions as store
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import not_found
from gpuaas_platform.core.origins import readable_user_agent
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller
from gpuaas_platform.identity.rules.signing_keys import TOKEN_SECONDS
from gpuaas_platform.identity.service.assertions import unauthenticated
from gpuaas_platform.identity.service.principals import Authenticated, caller_of_user
from gpuaas_platform.identity.service.tokens import TokenService
from gpuaas_platform.identity.storage import oauth as oauth_store
from gpuaas_platform.identity.storage import principals as principal_store

HOUR, DAY = 3_600, 86_400


@dataclass(frozen=True, slots=True)
class Life:
    """Seconds of idleness, and seconds in all, after which a login is over."""

    idle: int
    most: int

    @classmethod
    def of_days(cls, idle: float, most: float) -> "Life":
        return cls(int(min(idle, most) * DAY), int(most * DAY))


BROWSER_LIFE = Life(12 * HOUR, 7 * DAY)
TOKEN_LIFE = Life(TOKEN_SECONDS, TOKEN_SECONDS)
"""Of a login that cannot be renewed."""


def hash_secret(secret: str) -> str:
    """For secrets with 256 random bits: nothing slower is needed to keep them."""
    return hashlib.sha256(secret.encode()).hexdigest()


def csrf_token_of(cookie: str) -> str:
    """Made from the cookie's secret: bound to the session, and not to be had without it."""
    return hmac.new(cookie.encode(), b"gpuaas csrf", hashlib.sha256).hexdigest()


async def open_session(
    tx: Transaction,
    session_id: str,
    user_id: str,
    epoch: int,
    kind: SessionKind,
    life: Life,
    client: str,
    secret_hash: str | None = None,
) -> None:
    text = readable_user_agent(client)
    await store.insert(tx, NewSession(session_id, user_id, epoch, kind, text, life.idle, life.most, secret_hash))
    await tx.audit("auth.login", user_id, detail={"session_id": session_id, "kind": kind.value, "client": text})


async def end_session(tx: Transaction, caller: Caller, session_id: str) -> Session:
    row = await store.delete(tx, session_id, caller.id)
    if row is None:
        raise not_found("session", session_id)
    tx.match(row)
    await tx.audit("auth.logout", caller.id, detail={"session_id": session_id})
    return to_wire(Session, row)


async def list_sessions(
    tx: Transaction, caller: Caller, current_id: str | None, cursor: str | None, limit: int
) -> SessionPage:
    rows, after = cut_page(await store.list_of_user(tx, caller.id, decode_cursor(cursor), limit + 1), limit)
    items = [to_wire(Session, row, current=row.id == current_id) for row in rows]
    return SessionPage(items=items, next_cursor=after)


async def get_current(tx: Transaction, session_id: str, csrf_token: str | None) -> CurrentSession:
    row = await store.get(tx, session_id)
    if row is None:
        raise not_found("session", session_id)
    return to_wire(CurrentSession, row, current=True, csrf_token=csrf_token)


@dataclass(frozen=True, slots=True)
class Opened:
    cookie: str
    session: CurrentSession


class SessionService:
    def __init__(self, database: Database, tokens: TokenService, logins: Logins, terminal_life: Life) -> None:
        self._database = database
        self._terminal_life = terminal_life
        self._tokens = tokens
        self._logins = logins

    async def log_in_for_token(self, login: LoginRequest, client: str, correlation_id: str) -> Token:
        user = await self._logins.check_password(login.email, login.password.get_secret_value(), correlation_id)
        session_id = ids.new_id(ids.SESSION)
        token = await self._tokens.issue(user.id, user.epoch, session_id)
        refresh_token = secrets.token_urlsafe(32) if login.renewable else None
        life = self._terminal_life if login.renewable else TOKEN_LIFE
        async with self._database.transaction(user.id, correlation_id) as tx:
            await open_session(tx, session_id, user.id, user.epoch, SessionKind.PASSWORD, life, client)
            if refresh_token is not None:
                await oauth_store.insert_refresh_token(tx, hash_secret(refresh_token), session_id)
        return token.model_copy(update={"refresh_token": refresh_token})

    async def log_in_browser(self, login: LoginRequest, client: str, correlation_id: str) -> Opened:
        user = await self._logins.check_password(login.email, login.password.get_secret_value(), correlation_id)
        cookie = secrets.token_urlsafe(32)
        session_id = ids.new_id(ids.SESSION)
        async with self._database.transaction(user.id, correlation_id) as tx:
            kind, secret_hash = SessionKind.BROWSER, hash_secret(cookie)
            await open_session(tx, session_id, user.id, user.epoch, kind, BROWSER_LIFE, client, secret_hash)
            session = await get_current(tx, session_id, csrf_token_of(cookie))
        return Opened(cookie, session)

    async def authenticate_cookie(self, cookie: str, correlation_id: str) -> Authenticated:
        async with self._database.system_transaction(correlation_id) as tx:
            row = await principal_store.get_user_of_cookie(tx, hash_secret(cookie))
            if row is None or row.disabled or not row.live:
                raise unauthenticated("this session is over; log in again")
            if row.stale:
                # Once a minute is exact enough: not every request has to write.
                await store.touch(tx, row.session_id)
        return Authenticated(
            caller_of_user(row),
            row.expires_at,
            session_id=row.session_id,
            csrf_token=csrf_token_of(cookie),
            password_change_required=row.password_change_required,
        )
