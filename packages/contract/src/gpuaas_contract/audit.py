"""The audit trail: who did what, under which correlation id."""

from pydantic import AwareDatetime

from gpuaas_contract.base import JsonObject, Page, Resource


class AuditEntry(Resource):
    id: str
    at: AwareDatetime
    principal_id: str
    action: str
    target: str
    project_id: str | None = None
    correlation_id: str
    detail: JsonObject = {}


class AuditPage(Page):
    items: list[AuditEntry]
