"""The findings of a preflight: every obstacle, and every warning."""

from enum import StrEnum

from pydantic import Field

from gpuaas_contract.base import Message, Resource


class Severity(StrEnum):
    ERROR = "error"
    """It would be refused, or would fail."""
    WARNING = "warning"
    """It would be accepted; know this before."""


class FindingSource(StrEnum):
    PLATFORM = "platform"
    APP = "app"
    """The app's own checks, made by its controller."""


class Finding(Resource):
    severity: Severity
    code: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Stable. The platform's own are listed in the contract's page; an app's are its own."""
    message: Message
    pointer: str = Field(default="", max_length=500)
    """A JSON pointer into the request that was looked at; empty where it is about all of it."""
    action: Message = ""
    """The next step for whoever asked."""
    source: FindingSource = FindingSource.PLATFORM
