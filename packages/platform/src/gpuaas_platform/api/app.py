"""The FastAPI application: routes, handlers, and the loops that live as long as it does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import structlog
from fastapi import FastAPI
from psycopg_pool import PoolTimeout
from starlette.types import Lifespan

from gpuaas_platform.access.routes import authorities as ssh_authorities
from gpuaas_platform.access.routes import grants, terminals
from gpuaas_platform.access.routes.streams import StreamBroker
from gpuaas_platform.accounts.routes import device_page, oauth, service_accounts, sessions, users
from gpuaas_platform.allocations import routes as allocations
from gpuaas_platform.api.links import AgentLinks
from gpuaas_platform.api.middleware import RequestMiddleware
from gpuaas_platform.api.openapi import openapi_document
from gpuaas_platform.api.problems import install_handlers
from gpuaas_platform.api.routing import add_routes, check_permissions
from gpuaas_platform.artifacts import routes as artifacts
from gpuaas_platform.audit import routes as audit
from gpuaas_platform.catalogue import routes as catalogue
from gpuaas_platform.feed.routes import changes, history
from gpuaas_platform.identity.routes import quotas
from gpuaas_platform.identity.routes import tenants as identity
from gpuaas_platform.instances.routes import app_usage, instances, reconcile, tunnels
from gpuaas_platform.jobs.background import (
    close_leases,
    follow_feed,
    for_ever,
    keep_people,
    keep_receipt_key,
    keep_token_key,
    place,
    renew_vault_token,
    seal_audit,
    sequence_changes,
    sign_receipts,
    sweep,
    sweep_feed,
    sweep_history,
    sweep_secrets,
    write_failed_logins,
    write_requests,
)
from gpuaas_platform.nodes.routes import agents, nodes
from gpuaas_platform.observability import routes as health
from gpuaas_platform.observability.metrics import Metrics
from gpuaas_platform.operations.routes import operations, preflights, receipts
from gpuaas_platform.platform import Platform
from gpuaas_platform.secrets import routes as secrets
from gpuaas_platform.vault import routes as credentials
from gpuaas_platform.volumes import routes as volumes

log = structlog.get_logger()
LAST_WRITE_SECONDS = 2
"""The process ends without what cannot be written in so long."""

ROUTES = [
    sessions.routes,
    oauth.routes,
    oauth.well_known,
    device_page.routes,
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
    receipts.routes,
    reconcile.routes,
    app_usage.routes,
    tunnels.routes,
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
            "receipts": for_ever("receipts", lambda: sign_receipts(platform)),
            "receipt key": for_ever("receipt key", lambda: keep_receipt_key(platform)),
            "sweeper": for_ever("sweeper", lambda: sweep(platform)),
            "leases": for_ever("leases", lambda: close_leases(platform)),
            "people": for_ever("people", lambda: keep_people(platform)),
            "requests": for_ever("requests", lambda: write_requests(platform)),
            "failed logins": for_ever("failed logins", lambda: write_failed_logins(platform)),
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
        await _write_last_failures(platform)

    app = declare_app(lifespan)
    app.state.platform = platform
    app.state.links = AgentLinks(platform)
    app.state.streams = StreamBroker(platform, app.state.links, app.state.metrics)
    return app


async def _write_last_failures(platform: Platform) -> None:
    try:
        async with asyncio.timeout(LAST_WRITE_SECONDS):
            await platform.failed_logins.write(all_of_them=True)
    except (TimeoutError, psycopg.Error, PoolTimeout):
        log.warning("failed_logins_lost")


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
