"""The composition root of the server: every part is made here, and here only."""

import asyncio
import gc
import json
from pathlib import Path
from types import FrameType

import structlog
import uvicorn
from pydantic import ValidationError

from gpuaas_contract.identity import UserCreate
from gpuaas_contract.trust import is_loopback
from gpuaas_platform.access.service.authorities import Authorities
from gpuaas_platform.access.service.leases import LeaseDoors
from gpuaas_platform.access.service.people import PersonAccess
from gpuaas_platform.accounts.rules.guesses import Allowances
from gpuaas_platform.accounts.service import passwords, users
from gpuaas_platform.accounts.service.failed_logins import FailedLogins
from gpuaas_platform.accounts.service.logins import Logins
from gpuaas_platform.accounts.service.oauth import OAuthService
from gpuaas_platform.accounts.service.sessions import Life, SessionService
from gpuaas_platform.allocations.service.placement import AddressPlan
from gpuaas_platform.api.app import create_app
from gpuaas_platform.api.protocol import punctual
from gpuaas_platform.artifacts.adapters.registry import Registry
from gpuaas_platform.artifacts.adapters.space import Space
from gpuaas_platform.artifacts.adapters.uploads import Uploads
from gpuaas_platform.artifacts.rules.room import RoomLimits
from gpuaas_platform.artifacts.service.registry import RegistryService
from gpuaas_platform.audit.service import AuditService
from gpuaas_platform.core.certificates import CertificateFiles, ServedCertificate
from gpuaas_platform.core.checks import CheckPool
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
from gpuaas_platform.operations.service.receipts import ReceiptSigner
from gpuaas_platform.platform import Platform, StreamLimits
from gpuaas_platform.settings import ServingSettings, Settings
from gpuaas_platform.vault.service.versions import SecretKeeper

log = structlog.get_logger()


def build_platform(settings: Settings) -> Platform:
    database = Database(settings.database_url)
    openbao = OpenBao(settings.vault_addr, settings.vault_token_file)
    wakeups = Wakeups(settings.database_url)
    plan = AddressPlan(settings.environment, settings.network_range)
    tokens = TokenService(SigningKeys(openbao, database, settings.token_key_days), database)
    authorities = Authorities(database, openbao, settings.host_certificate_seconds)
    doors = LeaseDoors(database, wakeups)
    fingerprints = Fingerprints(database, openbao)
    limits = Limits.from_rates(settings.requests_per_second, settings.logins_per_minute)
    failed_logins = FailedLogins(database, fingerprints)
    allowances = Allowances.with_free(settings.login_failures_per_address, settings.login_failures_per_account)
    logins = Logins(database, fingerprints, failed_logins, limits.logins, allowances)
    terminal_life = Life.of_days(settings.terminal_login_idle_days, settings.terminal_login_days)
    audit = AuditService(database, openbao)
    return Platform(
        database=database,
        checks=CheckPool(settings.schema_workers, settings.schema_check_seconds),
        wakeups=wakeups,
        openbao=openbao,
        registry=RegistryService(
            openbao,
            Registry(settings.registry_url),
            Uploads(settings.registry_url, settings.registry_data, settings.registry_secret_file),
            Space(settings.registry_data),
            RoomLimits.from_gib(
                settings.artifact_largest_gib,
                settings.artifact_owner_gib,
                settings.registry_total_gib,
                settings.registry_reserve_gib,
            ),
            settings.registry_check_url,
        ),
        plan=plan,
        tokens=tokens,
        logins=logins,
        failed_logins=failed_logins,
        sessions=SessionService(database, tokens, logins, terminal_life),
        oauth=OAuthService(
            database, tokens, settings.origin, failed_logins, terminal_life, settings.refresh_grace_seconds
        ),
        authorities=authorities,
        person_access=PersonAccess(database, authorities, doors),
        operation_access=OperationAccess(database, authorities, doors),
        observer_access=ObserverAccess(database, authorities, doors),
        doors=doors,
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
        audit=audit,
        receipts=ReceiptSigner(database, openbao, audit, settings.receipt_key_days),
        secrets=SecretKeeper(database, openbao),
        host_certificate_seconds=settings.host_certificate_seconds,
        trusted_proxies=settings.trusted_proxies,
        offline_after_seconds=settings.node_offline_after_seconds,
        lease_seconds=settings.operation_lease_seconds,
        fingerprints=fingerprints,
        stream_limits=StreamLimits(settings.streams_per_principal, settings.terminal_idle_seconds),
        limits=limits,
        metrics_token_file=settings.metrics_token_file,
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


def load_certificate(settings: ServingSettings) -> ServedCertificate | None:
    if settings.tls is None:
        return None
    return ServedCertificate(CertificateFiles(*settings.tls), settings.names)


def warn_of_plain_http(settings: ServingSettings) -> None:
    if settings.tls is None and not is_loopback(settings.api_host):
        log.warning(
            "plain_http",
            detail=f"The API listens on {settings.api_host} without TLS: passwords, tokens and all that is read can be "
            "seen and changed on the way, and browsers keep no session. Set GPUAAS_TLS, or listen on 127.0.0.1 "
            "behind a proxy that has a certificate",
        )


async def serve(settings: Settings) -> None:
    passwords.use_memory(settings.password_memory_kib)
    # First of all: a certificate that cannot be used is said before anything is changed.
    certificate = load_certificate(settings)
    warn_of_plain_http(settings)
    platform = build_platform(settings)
    await platform.database.open()
    await platform.tokens.keys.start()
    await platform.receipts.start()
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
        # It would believe whoever connects from this machine; api/middleware.py reads these headers by the setting.
        proxy_headers=False,
        timeout_graceful_shutdown=5,
        http=punctual(settings.request_header_seconds, settings.request_body_seconds),
    )
    config.load()
    watching = None
    if certificate is not None:
        config.ssl = certificate.context
        watching = asyncio.create_task(certificate.watch(settings.tls_check_seconds), name="certificate")
    # What is there now stays. The collector need not look through it again, and hold up every request meanwhile.
    gc.collect()
    gc.freeze()
    try:
        await Server(config, platform).serve()
    finally:
        await platform.checks.close()
        if watching is not None:
            watching.cancel()
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
    admin = read_first_admin(settings.bootstrap_admin_file)
    password_hash = await passwords.hash_password(admin.password.get_secret_value())
    one_time = not settings.bootstrap_admin_permanent
    async with platform.database.system_transaction() as tx:
        await users.create_first_admin(tx, admin.email, password_hash, one_time=one_time)


def read_first_admin(path: Path) -> UserCreate:
    """Read the first administrator by the rules for every other user; end the program where it breaks them."""
    try:
        document = json.loads(path.read_text())
        return UserCreate(email=document["email"], password=document["password"])
    except ValidationError as error:
        found = "; ".join(f"{item['loc'][0]}: {item['msg']}" for item in error.errors(include_input=False))
        reason = f"{found}; write another one into the file"
    except (OSError, ValueError, TypeError, KeyError) as error:
        # Not the error's own words: they may quote the file.
        reason = f'it is not a JSON object with "email" and "password" ({type(error).__name__})'
    raise SystemExit(f"cannot make the first administrator from GPUAAS_BOOTSTRAP_ADMIN_FILE ({path}): {reason}")
