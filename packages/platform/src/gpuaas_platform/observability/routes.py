"""How the process is: for supervisors, balancers and Prometheus."""

from fastapi import Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from gpuaas_contract.problems import Code
from gpuaas_platform.api.context import platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.observability import health
from gpuaas_platform.observability.metrics import CONTENT_TYPE, Metrics

routes = Routes("health", prefix="")


class Status(BaseModel):
    status: str


@routes.get("/healthz", Permission.ANONYMOUS, response_model=Status)
async def is_alive(request: Request) -> Response:
    """The process answers and its loops run. What it stands on is not asked: a restart would not bring that back."""
    ended = [task.get_name() for task in request.app.state.loops if task.done()]
    if ended:
        raise Refusal(Code.UNAVAILABLE, f"background work has ended: {', '.join(ended)}", retry_after=5)
    return JSONResponse({"status": "alive"})


@routes.get("/readyz", Permission.ANONYMOUS, response_model=Status)
async def is_ready(request: Request) -> Response:
    """Really asks PostgreSQL and OpenBao."""
    platform = platform_of(request)
    found = await health.probe(platform.database, platform.openbao)
    if found.away:
        raise Refusal(Code.UNAVAILABLE, f"{' and '.join(found.away)} does not answer", retry_after=2)
    return JSONResponse({"status": "ready"})


@routes.get("/metrics", Permission.ANONYMOUS, response_class=PlainTextResponse)
async def read_metrics(request: Request) -> Response:
    """In Prometheus's text format. It names no tenant and no principal; keep it off the public side all the same."""
    platform, state = platform_of(request), request.app.state
    found = await health.probe(platform.database, platform.openbao)
    metrics: Metrics = state.metrics
    present = {
        "database_up": found.database,
        "secrets_server_up": found.secrets_server,
        "agents_connected": state.links.count,
        "streams_open": state.streams.count,
        **platform.database.pool_gauges(),
        **found.backlog,
    }
    return Response(metrics.render(present), media_type=CONTENT_TYPE)
