"""The services of one process, put together in `main`."""

from dataclasses import dataclass

from gpuaas_platform.access.service.authorities import Authorities
from gpuaas_platform.access.service.people import PersonAccess
from gpuaas_platform.accounts.service.oauth import OAuthService
from gpuaas_platform.accounts.service.sessions import SessionService
from gpuaas_platform.allocations.service.placement import AddressPlan
from gpuaas_platform.artifacts.service.registry import RegistryService
from gpuaas_platform.audit.service import AuditService
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
from gpuaas_platform.vault.service.versions import SecretKeeper


@dataclass(frozen=True, slots=True)
class StreamLimits:
    streams_per_principal: int
    terminal_idle_seconds: float


@dataclass(frozen=True, slots=True)
class Platform:
    database: Database
    wakeups: Wakeups
    openbao: OpenBao
    registry: RegistryService
    plan: AddressPlan
    tokens: TokenService
    sessions: SessionService
    oauth: OAuthService
    authorities: Authorities
    person_access: PersonAccess
    operation_access: OperationAccess
    observer_access: ObserverAccess
    presence: Presence
    request_log: RequestLog
    tasks: TaskService
    feed: FeedService
    limits: Limits
    stream_limits: StreamLimits
    fingerprints: Fingerprints
    audit: AuditService
    secrets: SecretKeeper
    offline_after_seconds: int
    """Without a heart-beat, a node."""
    lease_seconds: int
    """Of an operation; its holder extends it by heart-beats."""
