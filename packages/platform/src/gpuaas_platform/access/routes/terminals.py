"""Browser terminals."""

from fastapi import WebSocket

from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.access.routes.streams import refuse
from gpuaas_platform.access.routes.terminal import MOST_COLUMNS, Terminal
from gpuaas_platform.api.context import authenticated_context_of, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("terminals")


@routes.websocket("/allocations/{allocation_id}/terminal", Permission.ALLOCATION_ACCESS)
async def machine_terminal(websocket: WebSocket, allocation_id: str) -> None:
    """By a grant of one's own, or by a role: as for a certificate."""
    try:
        caller, correlation_id = await authenticated_context_of(websocket)
        size = _number(websocket, "columns", 80), _number(websocket, "rows", 24)
        terminal = Terminal(platform_of(websocket), websocket.app.state.streams, caller, correlation_id)
        await terminal.serve(websocket, allocation_id, size)
    except Refusal as refusal:
        await refuse(websocket, refusal)


def _number(websocket: WebSocket, name: str, default: int) -> int:
    given = websocket.query_params.get(name, str(default))
    if given.isascii() and given.isdigit() and 1 <= int(given[:6]) <= MOST_COLUMNS:
        return int(given)
    detail = f"{name} is a number from 1 to {MOST_COLUMNS}"
    raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer=f"query/{name}", detail=detail)])
