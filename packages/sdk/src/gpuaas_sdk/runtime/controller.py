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
from gpuaas_contract.identity import PrincipalKind
from gpuaas_contract.operations import Claim, Operation
from gpuaas_sdk.changes import Relist
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.correlation import correlation
from gpuaas_sdk.errors import GpuaasError
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.runtime.context import MachineAccess, OperationContext
from gpuaas_sdk.runtime.errors import ControllerMisconfiguredError, OperationFailed, RetryLater
from gpuaas_sdk.runtime.lease import Lease
from gpuaas_sdk.runtime.observing import OBSERVE_SECONDS, ObservedMachinesFactory, ObserveHandler, Observer
from gpuaas_sdk.runtime.worker import Handler, MachineAccessFactory, Worker, claim_operation

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 5.0
"""Also how long the operation of a dead controller waits after its lease ran out: no change says so."""
PLATFORM_AWAY = RetryPolicy(first_delay=0.2, longest_delay=5.0)
TRY_AGAIN = RetryPolicy(first_delay=1.0, longest_delay=30.0)
_OUR_OWN_EVENTS = frozenset({"claimed", "step_running", "step_succeeded", "step_failed"})


@dataclass(slots=True)
class _Job:
    """An operation that this process works on, or waits to work on again."""

    operation: Operation
    task: "asyncio.Task[None] | None" = None
    lease: Lease | None = None
    failures: int = 0
    not_before: float = 0.0


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
                async for item in self._client.changes():
                    self._notice(item)
            except GpuaasError as error:
                # For example a refused token; the resync goes on meanwhile.
                logger.warning("change feed ended: %s", error)
                await asyncio.sleep(PLATFORM_AWAY.longest_delay)

    def _notice(self, item: Change | Relist) -> None:
        if isinstance(item, Relist):
            self._wake.event.set()
            return
        if self._observer is not None:
            self._observer.notice(item)
        if item.noun != "operation":
            return
        job = self._jobs.get(item.resource_id)
        if job is None or job.task is None:
            self._wake.event.set()
        elif job.lease is not None and item.event not in _OUR_OWN_EVENTS:
            job.lease.check_now()

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
        now = asyncio.get_running_loop().time()
        # Ids sort by time of creation: one object's operations run in the order they were asked for.
        for operation in sorted(operations, key=lambda operation: operation.id):
            job = self._jobs.get(operation.id) or _Job(operation)
            if job.task is not None or job.not_before > now or self._is_busy(operation):
                continue
            self._jobs[operation.id] = job
            job.task = asyncio.create_task(self._work(job), name=operation.id)

    def _is_busy(self, operation: Operation) -> bool:
        running = [job for job in self._jobs.values() if job.task is not None]
        if len(running) >= self._max_workers:
            return True
        for job in running:
            other = job.operation
            if operation.instance_id is None or other.instance_id != operation.instance_id:
                continue
            if operation.member_id is None or other.member_id in (None, operation.member_id):
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
        operation = job.operation
        later: RetryLater | None = None
        try:
            with correlation(operation.correlation_id):
                claimed = await claim_operation(self._client, operation.id, self._holder)
            if claimed is not None:
                claim, job.lease = claimed
                logger.info("%s: claimed, %s, attempt %s", operation.id, operation.kind, claim.operation.attempt)
                handler = self._handlers.get(operation.kind, _kind_not_handled)
                machines = self._machines(self._client, claim)
                later = await Worker(self._client, claim, job.lease, handler, machines).run()
        except GpuaasError as error:
            later = RetryLater(None, str(error))
        except Exception:
            # A bug of ours, around the handler: it is said, and the operation is not hammered.
            logger.exception("%s: unexpected", operation.id)
            later = RetryLater(None, "unexpected error in the controller")
        finally:
            job.task = None
            job.lease = None
            if later is None:
                self._jobs.pop(operation.id, None)
            else:
                job.failures += 1
                pause = TRY_AGAIN.delay(job.failures) if later.after is None else later.after
                job.not_before = asyncio.get_running_loop().time() + pause
            self._wake.event.set()


def _ssh_machines(client: GpuaasClient, claim: Claim) -> MachineAccess:
    # Imported on the first claim: a test of an app's handlers never needs SSH.
    from gpuaas_sdk.machines.ssh import SshMachineAccess

    return SshMachineAccess(client, claim)
