"""Usage that an app reports of what ran in its instance, in neutral words, for the ledger."""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from gpuaas_contract.base import Key, Page, Request, Resource

MOST_RECORDS = 1_000
"""The most records in one report."""
MOST_LABELS = 20

Word = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Label = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Quantity = Annotated[Decimal, Field(ge=0, max_digits=24, decimal_places=6)]


class AppUsageReport(Request):
    """One piece of work in one interval, in one unit. The record id makes it one, however often it is sent."""

    record_id: Word
    """Chosen by the app, unique in its instance."""
    work_id: Word
    """The work that ran, named by the app: a job, a session, a request."""
    subject: Word
    """Who it ran for, as the app knows them."""
    quantity: Quantity
    unit: Key
    """For example `gpu_seconds`."""
    started_at: AwareDatetime
    ended_at: AwareDatetime
    labels: dict[Key, Label] = Field(default={}, max_length=MOST_LABELS)

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if self.ended_at < self.started_at:
            raise ValueError("it ended before it started")
        return self


class AppUsageBatch(Request):
    records: list[AppUsageReport] = Field(min_length=1, max_length=MOST_RECORDS)


class AppUsageOutcome(StrEnum):
    ACCEPTED = "accepted"
    KNOWN = "known"
    """The same record was accepted before; it counts once."""
    CONFLICT = "conflict"
    """The record id was accepted before with other content, which stays."""
    REFUSED = "refused"
    """The record contradicts itself or the instance."""


class AppUsageResult(Resource):
    record_id: str
    outcome: AppUsageOutcome
    detail: str = ""


class AppUsageAnswer(Resource):
    accepted: int
    results: list[AppUsageResult]
    """One result for each record, in the order of the report."""


class AppUsageRecord(Resource):
    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    app_slug: str
    record_id: str
    work_id: str
    subject: str
    quantity: Decimal
    unit: str
    started_at: AwareDatetime
    ended_at: AwareDatetime
    labels: dict[str, str] = {}
    reported_by: str
    reported_at: AwareDatetime


class AppUsagePage(Page):
    items: list[AppUsageRecord]
