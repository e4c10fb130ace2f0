"""Preflights: find every obstacle to a deploy or an operation without changing anything."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpuaas_contract.base import JsonObject, OwnedResource, Resource
from gpuaas_contract.findings import Finding

MOST_FINDINGS = 200


class PreflightState(StrEnum):
    RUNNING = "running"
    """The app's own checks are under way; the platform's are all there."""
    DONE = "done"


class AppChecks(StrEnum):
    """The outcome of the app's own checks."""

    NOT_DECLARED = "not_declared"
    """The app has none: its manifest has no operation `preflight`."""
    NOT_RUN = "not_run"
    """No controller is connected, or what was asked for makes no sense at all; a finding says so."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """They did not finish; a finding says why. Their result is unknown."""


class Preflight(OwnedResource):
    project_id: str
    instance_id: str | None = None
    """None for a deploy: there is no instance yet."""
    app_slug: str
    version: str | None = None
    kind: str
    """Of the operation that it is about: `deploy`, `add`, …"""
    request: JsonObject
    """The body that would be sent to do it."""
    allocation_ids: list[str]
    """The machines that the app's checks may look at."""
    state: PreflightState
    app_checks: AppChecks
    findings: list[Finding]
    ok: bool | None = None
    """Whether nothing stands in the way; None while the app's checks run and nothing was found so far."""
    operation_id: str | None = None
    """The operation in which the app's controller looks."""
    requested_by: str
    correlation_id: str
    ended_at: AwareDatetime | None = None


class PreflightResult(Resource):
    """The result of an app's `preflight` operation."""

    findings: list[Finding] = Field(default=[], max_length=MOST_FINDINGS)
