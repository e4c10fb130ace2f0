"""Routes for node agents: their link, the streams that they were asked to open, certificates, artifacts."""

from fastapi import Request, WebSocket

from gpuaas_contract.agent_link import ArtifactSource, HostCertificate, HostCertificateRequest
from gpuaas_contract.nodes import AgentKey, Enrolment
from gpuaas_platform.access.routes.streams import StreamBroker, refuse
from gpuaas_platform.access.service import streams as access
from gpuaas_platform.api.context import Agent, authenticated_agent, authenticated_context_of, platform_of
from gpuaas_platform.api.links import AgentLinks
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.artifacts.rules.registry_access import PULL, Access
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.nodes.service import deliveries, nodes

routes = Routes("agents")


@routes.websocket("/agent/link", Permission.AGENT)
async def agent_link(websocket: WebSocket) -> None:
    try:
        agent = await authenticated_agent(websocket)
    except Refusal as refusal:
        await refuse(websocket, refusal)
        return
    links: AgentLinks = websocket.app.state.links
    await links.serve(agent.id, websocket)


@routes.websocket("/agent/streams/{stream_id}", Permission.AGENT)
async def agent_stream(websocket: WebSocket, stream_id: str) -> None:
    broker: StreamBroker = websocket.app.state.streams
    try:
        agent = await authenticated_agent(websocket)
        await broker.serve_agent(agent.id, stream_id, websocket)
    except Refusal as refusal:
        await refuse(websocket, refusal)


@routes.websocket("/access-grants/{access_grant_id}/allocations/{allocation_id}/stream", Permission.ALLOCATION_ACCESS)
async def machine_stream(websocket: WebSocket, access_grant_id: str, allocation_id: str) -> None:
    broker: StreamBroker = websocket.app.state.streams
    try:
        caller, correlation_id = await authenticated_context_of(websocket)
        async with platform_of(websocket).database.transaction(caller.id, correlation_id) as tx:
            grant, machine = await access.open_stream(tx, caller, access_grant_id, allocation_id)
        await broker.serve_client(websocket, grant, machine, correlation_id)
    except Refusal as refusal:
        await refuse(websocket, refusal)


@routes.post("/agent/host-certificates", Permission.AGENT, response_model=HostCertificate)
async def certify_host(request: Request, agent: Agent, body: HostCertificateRequest) -> HostCertificate:
    return await platform_of(request).authorities.certify_host(agent, request.state.correlation_id, body)


@routes.post("/agent/identity", Permission.AGENT, response_model=Enrolment)
async def offer_agent_key(request: Request, agent: Agent, body: AgentKey) -> Enrolment:
    """The agent's next key, shown under its present one. The new one counts alone from its first use on."""
    async with platform_of(request).database.transaction(agent.id, request.state.correlation_id) as tx:
        return await nodes.offer_key(tx, agent, body)


@routes.get("/agent/artifacts/{digest}", Permission.AGENT, response_model=ArtifactSource)
async def locate_artifact(request: Request, agent: Agent, digest: str) -> ArtifactSource:
    """Where the file of an open delivery is, and a token that reads exactly that repository."""
    platform = platform_of(request)
    async with platform.database.system_transaction() as tx:
        repository = await deliveries.find_repository(tx, digest, agent.id)
    if not repository:
        raise not_found("artifact", digest)
    found = await platform.registry.token(agent.id, Access(repository, (PULL,)))
    url = f"{platform.registry.registry.url}/v2/{repository}/blobs/{digest}"
    return ArtifactSource(url=url, token=found.token, expires_in=found.expires_in)
