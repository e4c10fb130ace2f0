"""Logins of people: browser sessions, command lines, and password changes."""

from enum import StrEnum

from pydantic import AwareDatetime, Field, SecretStr

from gpuaas_contract.base import Page, Request, Resource
from gpuaas_contract.passwords import NewPassword

SESSION_COOKIE = "__Host-gpuaas"
CSRF_HEADER = "X-CSRF-Token"


class SessionKind(StrEnum):
    BROWSER = "browser"
    """A cookie, with a CSRF token for everything that changes something."""
    DEVICE = "device"
    """A command line that was approved in a browser; it renews its tokens by itself."""
    PASSWORD = "password"  # noqa: S105 - the name of a kind
    """A bearer token for an e-mail and a password; it ends with the token, unless the login asked to be renewable."""


class Session(Resource):
    """One login of a person. Ending it ends every token that it gave."""

    id: str
    kind: SessionKind
    user_id: str
    client: str = ""
    """The program that logged in, in its own words."""
    current: bool = False
    """Whether this is the login of the request."""
    created_at: AwareDatetime
    last_used_at: AwareDatetime
    expires_at: AwareDatetime
    """The end, if it is not used any more; each use moves it, up to a limit."""


class SessionPage(Page):
    items: list[Session]


class CurrentSession(Session):
    email: str
    csrf_token: str | None = None
    """Send it as `X-CSRF-Token` with every change. Only browser sessions have and need one."""
    password_change_required: bool = False


class PasswordChange(Request):
    current_password: SecretStr = Field(max_length=1024)
    new_password: NewPassword
