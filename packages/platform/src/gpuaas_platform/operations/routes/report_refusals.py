"""A refused report of a controller changes nothing, and is told where an operator looks."""

from fastapi import Request
from starlette.exceptions import HTTPException

from gpuaas_platform.api.context import authenticate
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller
from gpuaas_platform.operations.service import reports
from gpuaas_platform.platform import Platform

REPORTS = {
    "report_step",
    "complete_operation",
    "fail_operation",
    "end_cancelled_operation",
    "report_member",
    "report_instance",
}
"""Routes by which controllers report: a refusal is told on the operation, so that its operator sees why."""


async def tell_of_report(request: Request, refusal: Refusal) -> None:
    route = request.scope.get("route")
    if getattr(getattr(route, "endpoint", None), "__name__", "") not in REPORTS:
        return
    platform: Platform = request.app.state.platform
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        # The body was refused before anybody asked whose it is.
        try:
            caller = (await authenticate(request)).caller
        except Refusal:
            return
    async with platform.database.transaction(caller.id, str(request.state.correlation_id)) as tx:
        await reports.tell_refusal(
            tx,
            caller,
            refusal,
            operation_id=request.path_params.get("operation_id") or await _named_operation(request),
            member_id=request.path_params.get("member_id"),
            instance_id=request.path_params.get("instance_id"),
        )


async def _named_operation(request: Request) -> str | None:
    try:
        named = (await request.json()).get("operation_id")
    except (Refusal, HTTPException, ValueError, AttributeError, RuntimeError):
        return None
    return named if isinstance(named, str) else None
