"""How the process is: for supervisors, balancers and Prometheus."""

import hmac
from pathlib import Path

import structlog
from fastapi import Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from gpuaas_contract.problems import Code
from gpuaas_platform.api.context import authenticated_context, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Permission, Scope
from gpuaas_platform.observability import health
from gpuaas_platform.observability.metrics import CONTENT_TYPE, Metrics

log = structlog.get_logger()
routes = Routes("health", prefix="")


class Status(BaseModel):
    status: str


def _shows_token(request: Request, file: Path | None) -> bool:
    """Whether the request carries the metrics' own token, which also works while the database is away. Read each time,
    so that a new one counts at once."""
    if file is None:
        return False
    try:
        wanted = file.read_bytes().strip()
    except OSError as error:
        log.error("metrics_token_unreadable", file=str(file), reason=error.strerror)
        return False
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    return bool(wanted) and scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), wanted)


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


@routes.get("/metrics", Permission.METRICS_READ, response_class=PlainTextResponse)
async def read_metrics(request: Request) -> Response:
    """In Prometheus's text format, for who shows the token of GPUAAS_METRICS_TOKEN_FILE, and for platform
    administrators. It names no tenant and no principal."""
    platform, state = platform_of(request), request.app.state
    if not _shows_token(request, platform.metrics_token_file):
        context = await authenticated_context(request)
        context.caller.require(Permission.METRICS_READ, Scope(), "metrics", "metrics")
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
