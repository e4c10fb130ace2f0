"""The change feed: which resource changed, in one order for all readers."""

from pydantic import AwareDatetime

from gpuaas_contract.base import Resource


class Change(Resource):
    noun: str
    """For example `operation`, `allocation`, `instance`."""
    resource_id: str
    event: str
    """What happened, in the past tense: `created`, `claimed`, `step_reported`, …"""
    message: str = ""
    revision: int
    project_id: str | None = None
    instance_id: str | None = None
    correlation_id: str
    at: AwareDatetime


class ChangePage(Resource):
    items: list[Change]
    next_cursor: str
    """Pass it as `since` to go on from here; it is returned also when there was nothing."""
