"""The services of one process, put together in `main`."""

from dataclasses import dataclass

from gpuaas_platform.adapters.openbao import OpenBao
from gpuaas_platform.services.access_operations import OperationAccess
from gpuaas_platform.services.access_people import PersonAccess
from gpuaas_platform.services.audit import AuditService
from gpuaas_platform.services.authorities import Authorities
from gpuaas_platform.services.changes import FeedService
from gpuaas_platform.services.fingerprints import Fingerprints
from gpuaas_platform.services.limits import Limits
from gpuaas_platform.services.oauth import OAuthService
from gpuaas_platform.services.placement import AddressPlan
from gpuaas_platform.services.presence import Presence
from gpuaas_platform.services.reconcile import ObserverAccess
from gpuaas_platform.services.registry import RegistryService
from gpuaas_platform.services.request_log import RequestLog
from gpuaas_platform.services.secret_versions import SecretKeeper
from gpuaas_platform.services.sessions import SessionService
from gpuaas_platform.services.tasks import TaskService
from gpuaas_platform.services.tokens import TokenService
from gpuaas_platform.storage.database import Database
from gpuaas_platform.storage.wakeups import Wakeups


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
