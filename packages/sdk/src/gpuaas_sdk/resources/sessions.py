"""The caller's own logins, and the approval of device logins."""

from pydantic import SecretStr

from gpuaas_contract.identity import User
from gpuaas_contract.oauth import DeviceDecision, DeviceRequest
from gpuaas_contract.sessions import CurrentSession, PasswordChange, Session, SessionPage
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Sessions(ResourceRoutes):
    async def current(self) -> CurrentSession:
        return await self._transport.get("/auth/session", CurrentSession)

    def list(self, *, limit: int | None = None) -> Pager[Session]:
        return self._list("/auth/sessions", SessionPage, limit=limit)

    async def end(self, session_id: str, *, idempotency_key: str | None = None) -> Session:
        return await self._transport.delete(f"/auth/sessions/{session_id}", Session, idempotency_key=idempotency_key)

    async def end_current(self) -> Session:
        """Log out: the token of this request is invalid from then on."""
        return await self._transport.delete("/auth/session", Session)

    async def change_password(self, current_password: str, new_password: str) -> User:
        """Change the password. This ends every other login and the tokens of this one: log in again."""
        body = PasswordChange(current_password=SecretStr(current_password), new_password=SecretStr(new_password))
        return await self._transport.post("/auth/password", User, body)

    async def device_request(self, user_code: str) -> DeviceRequest:
        """Show the program that waits behind this code."""
        return await self._transport.get("/oauth/device", DeviceRequest, {"user_code": user_code})

    async def approve_device(self, user_code: str, *, idempotency_key: str | None = None) -> DeviceRequest:
        body = DeviceDecision(user_code=user_code)
        return await self._transport.post("/oauth/device/approve", DeviceRequest, body, idempotency_key=idempotency_key)

    async def deny_device(self, user_code: str, *, idempotency_key: str | None = None) -> DeviceRequest:
        body = DeviceDecision(user_code=user_code)
        return await self._transport.post("/oauth/device/deny", DeviceRequest, body, idempotency_key=idempotency_key)
