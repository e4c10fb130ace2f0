"""The services of one process, put together in `main`."""

from dataclasses import dataclass
from pathlib import Path

from gpuaas_contract.proxies import Network
from gpuaas_platform.access.service.authorities import Authorities
from gpuaas_platform.access.service.leases import LeaseDoors
from gpuaas_platform.access.service.people import PersonAccess
from gpuaas_platform.accounts.service.failed_logins import FailedLogins
from gpuaas_platform.accounts.service.logins import Logins
from gpuaas_platform.accounts.service.oauth import OAuthService
from gpuaas_platform.accounts.service.sessions import SessionService
from gpuaas_platform.allocations.service.placement import AddressPlan
from gpuaas_platform.artifacts.service.registry import RegistryService
from gpuaas_platform.audit.service import AuditService
from gpuaas_platform.core.checks import CheckPool
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.kept_keys import Fingerprints
from gpuaas_platform.core.limits import Limits
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.core.wakeups import Wakeups
from gpuaas_platform.feed.service.changes import FeedService
from gpuaas_platform.feed.service.request_log import RequestLog
from gpuaas_platform.identity.service.presence import Presence
from gpuaas_platform.identity.service.tokens import TokenService
from gpuaas_platform.instances.service.reconcile import ObserverAccess
from gpuaas_platform.nodes.service.tasks import TaskService
from gpuaas_platform.operations.service.access import OperationAccess
from gpuaas_platform.operations.service.receipts import ReceiptSigner
from gpuaas_platform.vault.service.versions import SecretKeeper


@dataclass(frozen=True, slots=True)
class StreamLimits:
    streams_per_principal: int
    terminal_idle_seconds: float


@dataclass(frozen=True, slots=True)
class Platform:
    database: Database
    checks: CheckPool
    wakeups: Wakeups
    openbao: OpenBao
    registry: RegistryService
    plan: AddressPlan
    tokens: TokenService
    logins: Logins
    failed_logins: FailedLogins
    sessions: SessionService
    oauth: OAuthService
    authorities: Authorities
    person_access: PersonAccess
    operation_access: OperationAccess
    observer_access: ObserverAccess
    doors: LeaseDoors
    presence: Presence
    request_log: RequestLog
    tasks: TaskService
    feed: FeedService
    limits: Limits
    stream_limits: StreamLimits
    fingerprints: Fingerprints
    audit: AuditService
    receipts: ReceiptSigner
    secrets: SecretKeeper
    host_certificate_seconds: int
    """Life of the certificate by which a machine proves itself."""
    trusted_proxies: tuple[Network, ...]
    """From these alone X-Forwarded-… headers are believed."""
    offline_after_seconds: int
    """Without a heart-beat, a node."""
    lease_seconds: int
    """Of an operation; its holder extends it by heart-beats."""
    metrics_token_file: Path | None
    """Who shows what is in it reads the metrics."""
