"""The FastAPI application: routes, handlers, and the loops that live as long as it does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import Lifespan

from gpuaas_platform.api.links import AgentLinks
from gpuaas_platform.api.middleware import RequestMiddleware
from gpuaas_platform.api.openapi import openapi_document
from gpuaas_platform.api.problems import install_handlers
from gpuaas_platform.api.routes import (
    agents,
    allocations,
    app_usage,
    artifacts,
    audit,
    catalogue,
    changes,
    credentials,
    grants,
    health,
    history,
    identity,
    instances,
    nodes,
    oauth,
    operations,
    preflights,
    quotas,
    reconcile,
    secrets,
    service_accounts,
    sessions,
    ssh_authorities,
    terminals,
    users,
    volumes,
)
from gpuaas_platform.api.routing import add_routes, check_permissions
from gpuaas_platform.api.streams import StreamBroker
from gpuaas_platform.jobs.background import (
    follow_feed,
    for_ever,
    keep_token_key,
    renew_vault_token,
    seal_audit,
    sequence_changes,
    sweep,
    sweep_feed,
    sweep_history,
    sweep_secrets,
    write_requests,
)
from gpuaas_platform.jobs.placement import place
from gpuaas_platform.observability.metrics import Metrics
from gpuaas_platform.services.platform import Platform

ROUTES = [
    sessions.routes,
    oauth.routes,
    oauth.well_known,
    identity.routes,
    users.routes,
    service_accounts.routes,
    nodes.routes,
    allocations.routes,
    volumes.routes,
    quotas.routes,
    catalogue.routes,
    artifacts.routes,
    preflights.routes,
    instances.routes,
    operations.routes,
    reconcile.routes,
    app_usage.routes,
    credentials.routes,
    grants.routes,
    ssh_authorities.routes,
    secrets.routes,
    changes.routes,
    history.routes,
    audit.routes,
    health.routes,
    agents.routes,
    terminals.routes,
]


def create_app(platform: Platform) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        work = {
            "wake-ups": platform.wakeups.run(),
            "sequencer": for_ever("sequencer", lambda: sequence_changes(platform)),
            "feed": for_ever("feed", lambda: follow_feed(platform)),
            "feed sweeper": for_ever("feed sweeper", lambda: sweep_feed(platform)),
            "audit": for_ever("audit", lambda: seal_audit(platform)),
            "sweeper": for_ever("sweeper", lambda: sweep(platform)),
            "requests": for_ever("requests", lambda: write_requests(platform)),
            "history sweeper": for_ever("history sweeper", lambda: sweep_history(platform)),
            "placement": for_ever("placement", lambda: place(platform)),
            "secrets sweeper": for_ever("secrets sweeper", lambda: sweep_secrets(platform)),
            "vault token": for_ever("vault token", lambda: renew_vault_token(platform)),
            "token key": for_ever("token key", lambda: keep_token_key(platform)),
            "streams": app.state.streams.cut_ended(),
        }
        loops = app.state.loops = [asyncio.create_task(loop, name=name) for name, loop in work.items()]
        yield
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)

    app = declare_app(lifespan)
    app.state.platform = platform
    app.state.links = AgentLinks(platform)
    app.state.streams = StreamBroker(platform, app.state.links, app.state.metrics)
    return app


def declare_app(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """The application without anything behind it: enough to describe it."""
    app = FastAPI(
        title="GPUaaS",
        version="1",
        description="A GPU control plane on which independent teams run clustered apps.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    add_routes(app, ROUTES)
    install_handlers(app)
    app.state.metrics = Metrics()
    app.add_middleware(RequestMiddleware, metrics=app.state.metrics)
    check_permissions(app)
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]
    return app
