"""Tunnels to the ports of members."""

from fastapi import WebSocket

from gpuaas_contract.ports import MemberPort
from gpuaas_platform.access.routes.streams import StreamBroker, refuse
from gpuaas_platform.api.context import Ctx, authenticated_context_of, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.instances.service import tunnels

routes = Routes("tunnels")


@routes.get("/members/{member_id}/ports/{port}", Permission.TUNNEL_OPEN, response_model=MemberPort)
async def get_member_port(ctx: Ctx, member_id: str, port: str) -> MemberPort:
    """A port that the app declares for people, by name or number, where a tunnel to it can be opened now. The refusal
    says why it cannot. Nothing is connected to."""
    async with ctx.read() as tx:
        target = await tunnels.find_target(tx, ctx.caller, member_id, port)
    if target.port.through_agent:
        broker: StreamBroker = ctx.request.app.state.streams
        broker.require_link(target.machine)
    return target.port


@routes.websocket("/members/{member_id}/ports/{port}/stream", Permission.TUNNEL_OPEN)
async def member_port_stream(websocket: WebSocket, member_id: str, port: str) -> None:
    """One connection to the port."""
    broker: StreamBroker = websocket.app.state.streams
    try:
        caller, correlation_id = await authenticated_context_of(websocket)
        async with platform_of(websocket).database.transaction(caller.id, correlation_id) as tx:
            tunnel = await tunnels.open_tunnel(tx, caller, member_id, port)
        await broker.serve_client(websocket, tunnel.access, tunnel.machine, correlation_id, tunnel.port)
    except Refusal as refusal:
        await refuse(websocket, refusal)
