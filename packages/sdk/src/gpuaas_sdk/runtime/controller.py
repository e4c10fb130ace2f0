"""Finds the operations of an app and runs one worker for each object that has one."""

import asyncio
import logging
import os
import re
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuaas_contract.changes import Change
from gpuaas_contract.events import InstanceEvent, OperationEvent
from gpuaas_contract.identity import PrincipalKind
from gpuaas_contract.nouns import Noun
from gpuaas_contract.operations import Claim, Operation
from gpuaas_sdk import clock
from gpuaas_sdk.changes import Relist
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.correlation import correlation
from gpuaas_sdk.errors import GpuaasError, TransportError
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.runtime.breaker import Breakers
from gpuaas_sdk.runtime.context import MachineAccess, OperationContext
from gpuaas_sdk.runtime.errors import ControllerMisconfiguredError, OperationFailed, PlatformAway, RetryLater
from gpuaas_sdk.runtime.lease import Lease
from gpuaas_sdk.runtime.observing import (
    OBSERVE_SECONDS,
    OUR_OPERATION_EVENTS,
    ObservedMachinesFactory,
    ObserveHandler,
    Observer,
)
from gpuaas_sdk.runtime.worker import Handler, MachineAccessFactory, Worker, claim_operation

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 5.0
"""Also how long the operation of a dead controller waits after its lease ran out: no change says so."""
PLATFORM_AWAY = RetryPolicy(first_delay=0.2, longest_delay=5.0)
TRY_AGAIN = RetryPolicy(first_delay=1.0, longest_delay=30.0)
_NEW_WORK = frozenset({OperationEvent.REQUESTED, OperationEvent.RETRIED})
_NO_WORK = OUR_OPERATION_EVENTS | {
    OperationEvent.QUEUED,
    OperationEvent.CANCEL_REQUESTED,
    OperationEvent.SUCCEEDED,
    OperationEvent.FAILED,
    OperationEvent.CANCELLED,
}
"""After these the operation cannot be claimed; what waited for it has a change of its own."""


@dataclass(slots=True)
class _Job:
    """An operation that this process works on, or waits to work on again."""

    operation_id: str
    instance_id: str | None
    member_id: str | None
    """None for the whole instance, and until a claim says which member a change is about."""
    correlation_id: str
    task: "asyncio.Task[None] | None" = None
    lease: Lease | None = None
    failures: int = 0
    not_before: float = 0.0

    @property
    def target(self) -> str:
        """The unit of work of one worker at a time: a member, or the whole instance."""
        return str(self.member_id or self.instance_id)


@dataclass(slots=True)
class _Wake:
    event: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.event.wait()
        except TimeoutError:
            pass
        self.event.clear()


def default_holder() -> str:
    return re.sub(r"[^A-Za-z0-9._:-]", "-", f"{socket.gethostname()}:{os.getpid()}")[:100]


async def _kind_not_handled(context: OperationContext) -> None:
    raise OperationFailed(
        "kind_not_handled",
        f"this controller has no handler for {context.operation.kind!r}; its app's manifest promises one",
        retryable=True,
    )


class Controller:
    """Runs an app's handlers, one for each kind of operation, until it is stopped.

    Any number of processes may run at once: a lease decides who works on what. Handlers must be
    idempotent and look before they repeat, since a successor starts from the first step.
    """

    def __init__(
        self,
        client: GpuaasClient,
        handlers: Mapping[str, Handler],
        *,
        holder: str | None = None,
        machines: MachineAccessFactory | None = None,
        resync_seconds: float = RESYNC_SECONDS,
        max_workers: int = 64,
        observe: ObserveHandler | None = None,
        observe_seconds: float = OBSERVE_SECONDS,
        observed_machines: ObservedMachinesFactory | None = None,
    ) -> None:
        """`observe` is called for each instance that this process looks after, every `observe_seconds` and when
        something happened to the instance."""
        self._client = client
        self._handlers = dict(handlers)
        self._holder = holder or default_holder()
        self._machines = machines or _ssh_machines
        self._resync_seconds = resync_seconds
        self._max_workers = max_workers
        self._project_id: str | None = None
        self._observe = observe
        self._observe_seconds = observe_seconds
        self._observed_machines = observed_machines
        self._observer: Observer | None = None
        self._jobs: dict[str, _Job] = {}
        self._own_instances: set[str] = set()
        """Whose operations were seen to be ours: the feed may also tell of those of other apps. Forgotten when they
        are gone, and where the feed has a gap, in which that may have been said: to look once more is all it costs."""
        self._left_aside = False
        """Something could be claimed, but this process is busy with its object, or with too much."""
        self._breakers = Breakers()
        self._wake = _Wake()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take nothing new, stop the handlers, hand the leases back; `run` returns when that is done."""
        self._stopping.set()
        self._wake.event.set()

    async def run_until_signalled(self) -> None:
        """`run`, until SIGTERM or SIGINT: for the main program of a controller."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            await self.run()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def run(self) -> None:
        beside = [asyncio.create_task(self._follow_feed())]
        try:
            await self._check_account()
            if self._observer is not None:
                beside.append(asyncio.create_task(self._observer.run()))
            await self._dispatch_until_stopped()
        finally:
            tasks = [*beside, *(job.task for job in self._jobs.values() if job.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _check_account(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                principal = await self._client.principal()
            except GpuaasError as error:
                # Also a refused account: it heals when the account is enabled again.
                failures += 1
                logger.warning("cannot start yet: %s", error)
                await self._wake.wait(PLATFORM_AWAY.delay(failures))
                continue
            if principal.kind != PrincipalKind.SERVICE_ACCOUNT or principal.app_slug is None:
                raise ControllerMisconfiguredError(
                    f"{principal.name} is not a service account that is bound to an app; "
                    "make one with: gpuaas service-account create NAME --app SLUG"
                )
            self._project_id = principal.project_id
            if self._observe is not None:
                self._observer = Observer(
                    self._client,
                    self._observe,
                    app_slug=principal.app_slug,
                    project_id=principal.project_id,
                    holder=self._holder,
                    interval=self._observe_seconds,
                    machines=self._observed_machines,
                )
            logger.info("working as %s for %s, holder %s", principal.name, principal.app_slug, self._holder)
            return

    async def _follow_feed(self) -> None:
        while True:
            try:
                async for item in self._client.changes(stream=True):
                    self._notice(item)
            except GpuaasError as error:
                # For example a refused token; the resync goes on meanwhile.
                logger.warning("change feed ended: %s", error)
                await asyncio.sleep(PLATFORM_AWAY.longest_delay)

    def _notice(self, item: Change | Relist) -> None:
        if isinstance(item, Relist):
            self._own_instances.clear()
            self._wake.event.set()
            return
        if self._observer is not None:
            self._observer.notice(item)
        if item.noun == Noun.INSTANCE and item.event == InstanceEvent.DECOMMISSIONED:
            self._own_instances.discard(item.resource_id)
        if item.noun != Noun.OPERATION:
            return
        job = self._jobs.get(item.resource_id)
        if job is not None and job.task is not None:
            if job.lease is not None and item.event not in OUR_OPERATION_EVENTS:
                job.lease.check_now()
        elif job is None and item.event in _NEW_WORK and self._is_free_for(item.instance_id):
            # Claimed at once: to list what can be claimed would only say the same again.
            self._start(_Job(item.resource_id, item.instance_id, None, item.correlation_id))
        elif item.event not in _NO_WORK:
            self._wake.event.set()

    def _is_free_for(self, instance_id: str | None) -> bool:
        """Whether an operation of the instance can be worked on, whichever of its members it is about."""
        return (
            instance_id in self._own_instances
            and not self._stopping.is_set()
            and not self._breakers.any_open(asyncio.get_running_loop().time())
            and len(self._jobs) < self._max_workers
            and all(job.instance_id != instance_id for job in self._jobs.values())
        )

    def _start(self, job: _Job) -> None:
        self._jobs[job.operation_id] = job
        job.task = asyncio.create_task(self._work(job), name=job.operation_id)

    async def _dispatch_until_stopped(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._dispatch()
                failures = 0
                await self._wake.wait(self._seconds_to_next_look())
            except GpuaasError as error:
                failures += 1
                logger.warning("cannot look for work: %s", error)
                await self._wake.wait(PLATFORM_AWAY.delay(failures))

    async def _dispatch(self) -> None:
        operations = await self._client.operations.list(project_id=self._project_id, claimable=True).all()
        claimable = {operation.id for operation in operations}
        for key in [key for key, job in self._jobs.items() if job.task is None and key not in claimable]:
            del self._jobs[key]
        self._own_instances |= {operation.instance_id for operation in operations if operation.instance_id}
        now = asyncio.get_running_loop().time()
        left_aside = False
        # Ids sort by time of creation: one object's operations run in the order they were asked for.
        for operation in sorted(operations, key=lambda operation: operation.id):
            job = self._jobs.get(operation.id) or _job_of(operation)
            # Not beyond its deadline: then it is claimed once more, to be failed.
            open_until = min(self._breakers.open_until(job.target), now + _seconds_left(operation))
            job.not_before = max(job.not_before, open_until)
            if job.task is not None:
                continue
            if job.not_before > now:
                self._jobs[operation.id] = job
            elif self._is_busy(operation):
                left_aside = True
            else:
                self._start(job)
        self._left_aside = left_aside

    def _is_busy(self, operation: Operation) -> bool:
        running = [job for job in self._jobs.values() if job.task is not None]
        if len(running) >= self._max_workers:
            return True
        for job in running:
            if operation.instance_id is None or job.instance_id != operation.instance_id:
                continue
            if operation.member_id is None or job.member_id in (None, operation.member_id):
                # The platform lets the new one be claimed, so the old one may have been pre-empted.
                if job.lease is not None:
                    job.lease.check_now()
                return True
        return False

    def _seconds_to_next_look(self) -> float:
        now = asyncio.get_running_loop().time()
        waiting = [job.not_before - now for job in self._jobs.values() if job.task is None]
        return max(min([self._resync_seconds, *waiting]), 0.01)

    async def _work(self, job: _Job) -> None:
        id = job.operation_id
        later: RetryLater | None = None
        try:
            with correlation(job.correlation_id):
                claimed = await claim_operation(self._client, id, self._holder)
            if claimed is not None:
                claim, job.lease = claimed
                operation = claim.operation
                job.member_id = operation.member_id
                logger.info("%s: claimed, %s, attempt %s", id, operation.kind, operation.attempt)
                handler = self._handlers.get(operation.kind, _kind_not_handled)
                machines = self._machines(self._client, claim)
                later = await Worker(self._client, claim, job.lease, handler, machines).run()
        except TransportError as error:
            later = PlatformAway(error)
        except GpuaasError as error:
            later = RetryLater(None, str(error))
        except Exception:
            # A bug of ours, around the handler: it is said, and the operation is not hammered.
            logger.exception("%s: unexpected", id)
            later = RetryLater(None, "unexpected error in the controller")
        finally:
            job.task = None
            job.lease = None
            if later is None:
                self._jobs.pop(id, None)
                self._breakers.succeeded(job.target)
            else:
                job.failures += 1
                job.not_before = asyncio.get_running_loop().time() + self._pause(job, later)
            if later is not None or self._left_aside:
                self._wake.event.set()

    def _pause(self, job: _Job, later: RetryLater) -> float:
        if later.after is not None:
            return later.after
        if isinstance(later, PlatformAway):
            # Its restart says nothing about the member, which a breaker would leave alone when all is well again.
            return PLATFORM_AWAY.delay(job.failures)
        self._breakers.failed(job.target, asyncio.get_running_loop().time())
        return TRY_AGAIN.delay(job.failures)


def _job_of(operation: Operation) -> _Job:
    return _Job(operation.id, operation.instance_id, operation.member_id, operation.correlation_id)


def _seconds_left(operation: Operation) -> float:
    return (operation.deadline - clock.now()).total_seconds()


def _ssh_machines(client: GpuaasClient, claim: Claim) -> MachineAccess:
    # Imported on the first claim: a test of an app's handlers never needs SSH.
    from gpuaas_sdk.machines.ssh import SshMachineAccess

    return SshMachineAccess(client, claim)
