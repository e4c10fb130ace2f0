"""The same operation on many members at once, with a policy for what happens when some do not succeed."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpuaas_contract.base import JsonObject, Key, OwnedResource, Page, Request, Resource
from gpuaas_contract.operations import OperationState
from gpuaas_contract.problems import AllowedAction, Code

MOST_MEMBERS = 1_000


class AtLeast(Request):
    at_least: int = Field(ge=1, le=MOST_MEMBERS)


class Policy(StrEnum):
    """A request that cannot meet its policy any more is refused as a whole; later, what nobody has claimed yet is
    cancelled. What runs already is left to end, and what is done is not undone."""

    ALL_OR_NOTHING = "all_or_nothing"
    """Met when every one succeeds."""
    BEST_EFFORT = "best_effort"
    """Each for itself; met when one succeeds."""


BulkPolicy = Policy | AtLeast
"""`{"at_least": n}` is met when n succeed."""


class MembersAdd(Request):
    component_key: Key
    allocation_ids: list[str] = Field(min_length=1, max_length=MOST_MEMBERS)
    policy: BulkPolicy = Policy.ALL_OR_NOTHING
    input: JsonObject = {}


class MemberOperationsCreate(Request):
    kind: Key
    member_ids: list[str] = Field(min_length=1, max_length=MOST_MEMBERS)
    policy: BulkPolicy = Policy.ALL_OR_NOTHING
    input: JsonObject = {}
    queue: bool = False


class BulkState(StrEnum):
    RUNNING = "running"
    """Some of its operations have not ended."""
    SUCCEEDED = "succeeded"
    """All have ended, and the policy was met."""
    FAILED = "failed"


class RefusedTarget(Resource):
    """Why there is no operation for one of them."""

    code: Code
    detail: str
    allowed_actions: list[AllowedAction] = []
    context: JsonObject = {}


class BulkResult(Resource):
    member_id: str | None = None
    allocation_id: str | None = None
    operation_id: str | None = None
    """Absent where it was refused."""
    state: OperationState | None = None
    refused: RefusedTarget | None = None


class Bulk(OwnedResource):
    instance_id: str
    project_id: str
    kind: str
    policy: BulkPolicy
    state: BulkState
    results: list[BulkResult]
    """In the order of the request."""
    requested_by: str
    correlation_id: str
    ended_at: AwareDatetime | None = None


class BulkPage(Page):
    items: list[Bulk]
