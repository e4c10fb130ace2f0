"""The composition root of the server: every part is made here, and here only."""

import asyncio
import gc
import json
from types import FrameType

import uvicorn

from gpuaas_platform.access.service.authorities import Authorities
from gpuaas_platform.access.service.people import PersonAccess
from gpuaas_platform.accounts.service import users
from gpuaas_platform.accounts.service.oauth import OAuthService
from gpuaas_platform.accounts.service.sessions import SessionService
from gpuaas_platform.allocations.service.placement import AddressPlan
from gpuaas_platform.api.app import create_app
from gpuaas_platform.artifacts.adapters.registry import Registry
from gpuaas_platform.artifacts.adapters.uploads import Uploads
from gpuaas_platform.artifacts.service.registry import RegistryService
from gpuaas_platform.audit.service import AuditService
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.kept_keys import Fingerprints
from gpuaas_platform.core.limits import Limits
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.core.wakeups import Wakeups
from gpuaas_platform.feed.service.changes import FeedService
from gpuaas_platform.feed.service.cursors import Cursors
from gpuaas_platform.feed.service.request_log import RequestLog
from gpuaas_platform.identity.service.presence import Presence
from gpuaas_platform.identity.service.signing_keys import SigningKeys
from gpuaas_platform.identity.service.tokens import TokenService
from gpuaas_platform.instances.service.reconcile import ObserverAccess
from gpuaas_platform.nodes.service.tasks import TaskService
from gpuaas_platform.operations.service.access import OperationAccess
from gpuaas_platform.platform import Platform, StreamLimits
from gpuaas_platform.settings import Settings
from gpuaas_platform.vault.service.versions import SecretKeeper


def build_platform(settings: Settings) -> Platform:
    database = Database(settings.database_url)
    openbao = OpenBao(settings.vault_addr, settings.vault_token_file)
    wakeups = Wakeups(settings.database_url)
    plan = AddressPlan(settings.environment, settings.network_range)
    tokens = TokenService(SigningKeys(openbao, database, settings.token_key_days), database)
    authorities = Authorities(database, openbao)
    return Platform(
        database=database,
        wakeups=wakeups,
        openbao=openbao,
        registry=RegistryService(
            openbao,
            Registry(settings.registry_url),
            Uploads(settings.registry_url, settings.registry_data, settings.registry_secret_file),
        ),
        plan=plan,
        tokens=tokens,
        sessions=SessionService(database, tokens),
        oauth=OAuthService(database, tokens, settings.origin),
        authorities=authorities,
        person_access=PersonAccess(database, authorities),
        operation_access=OperationAccess(database, authorities),
        observer_access=ObserverAccess(database, authorities),
        presence=Presence(database),
        request_log=RequestLog(database),
        tasks=TaskService(database, plan),
        feed=FeedService(
            database,
            wakeups,
            Cursors(database, openbao),
            streams_per_principal=settings.feed_streams_per_principal,
            retention_hours=settings.feed_retention_hours,
            heartbeat_seconds=settings.feed_heartbeat_seconds,
        ),
        audit=AuditService(database, openbao),
        secrets=SecretKeeper(database, openbao),
        offline_after_seconds=settings.node_offline_after_seconds,
        lease_seconds=settings.operation_lease_seconds,
        fingerprints=Fingerprints(database, openbao),
        stream_limits=StreamLimits(settings.streams_per_principal, settings.terminal_idle_seconds),
        limits=Limits.from_rates(settings.requests_per_second, settings.logins_per_minute),
    )


class Server(uvicorn.Server):
    """Lets those who wait for changes go as soon as it is asked to end, so that nobody holds it up."""

    def __init__(self, config: uvicorn.Config, platform: Platform) -> None:
        super().__init__(config)
        self._platform = platform
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._platform.feed.close)
        super().handle_exit(sig, frame)


async def serve(settings: Settings) -> None:
    users.use_memory(settings.password_memory_kib)
    platform = build_platform(settings)
    await platform.database.open()
    await platform.tokens.keys.start()
    await platform.fingerprints.start()
    await platform.registry.start()
    await _make_first_admin(platform, settings)
    config = uvicorn.Config(
        create_app(platform),
        host=settings.api_host,
        port=settings.api_port,
        access_log=False,
        log_config=None,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=5,
    )
    # What is there now stays. The collector need not look through it again, and hold up every request meanwhile.
    gc.collect()
    gc.freeze()
    try:
        await Server(config, platform).serve()
    finally:
        await platform.registry.registry.close()
        await platform.openbao.close()
        await platform.database.close()


async def _make_first_admin(platform: Platform, settings: Settings) -> None:
    if settings.bootstrap_admin_file is None or not settings.bootstrap_admin_file.exists():
        return
    async with platform.database.system_transaction() as tx:
        # Asked first, and again below: to hash a password takes long, and each start would do it for nothing.
        if await users.exist(tx):
            return
    admin = json.loads(settings.bootstrap_admin_file.read_text())
    password_hash = await users.hash_password(admin["password"])
    one_time = not settings.bootstrap_admin_permanent
    async with platform.database.system_transaction() as tx:
        await users.create_first_admin(tx, admin["email"], password_hash, one_time=one_time)
