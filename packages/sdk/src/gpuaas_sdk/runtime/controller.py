"""Finds the operations of an app and runs one worker for each object that has one."""

import asyncio
import logging
import os
import re
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from gpuaas_contract.changes import Change
from gpuaas_contract.events import OperationEvent
from gpuaas_contract.identity import PrincipalKind
from gpuaas_contract.nouns import Noun
from gpuaas_contract.operations import Claim
from gpuaas_sdk.changes import Relist
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.correlation import correlation
from gpuaas_sdk.errors import GpuaasError, NotOperatorError, TransportError
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
from gpuaas_sdk.runtime.queue import MAX_RUNNING, PLATFORM_AWAY, QueueMetrics, WorkItem, WorkQueue
from gpuaas_sdk.runtime.worker import Handler, MachineAccessFactory, Worker, claim_operation

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 5.0
"""Also how long the operation of a dead controller waits after its lease ran out: no change says so."""
MOST_REMEMBERED = 10_000
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
class _Run:
    task: "asyncio.Task[None]"
    lease: Lease | None = None
    """Until the claim is answered there is none."""


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
        max_workers: int = MAX_RUNNING,
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
        self._app_slug: str | None = None
        self._project_id: str | None = None
        self._observe = observe
        self._observe_seconds = observe_seconds
        self._observed_machines = observed_machines
        self._observer: Observer | None = None
        self._queue = WorkQueue(max_running=max_workers)
        self._runs: dict[str, _Run] = {}
        self._of_others: set[str] = set()
        """Instances that have another operator: their operations are not claimed unasked, only where the list of what
        can be claimed names them."""
        self._stopping = False

    @property
    def metrics(self) -> QueueMetrics:
        """How much waits and runs now, and what has come and gone since the process began."""
        return self._queue.metrics

    def stop(self) -> None:
        """Take nothing new, stop the handlers, hand the leases back; `run` returns when that is done."""
        self._stopping = True
        self._queue.close()

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
            tasks = [*beside, *(run.task for run in self._runs.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _check_account(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                principal = await self._client.principal()
            except GpuaasError as error:
                # Also a refused account: it heals when the account is enabled again.
                failures += 1
                logger.warning("cannot start yet: %s", error)
                await self._queue.pause(PLATFORM_AWAY.delay(failures))
                continue
            if principal.kind != PrincipalKind.SERVICE_ACCOUNT or principal.app_slug is None:
                raise ControllerMisconfiguredError(
                    f"{principal.name} is not a service account that is bound to an app; "
                    "make one with: gpuaas service-account create NAME --app SLUG"
                )
            self._app_slug = principal.app_slug
            self._project_id = principal.project_id
            if self._observe is not None:
                self._observer = Observer(
                    self._client,
                    self._observe,
                    app_slug=principal.app_slug,
                    account_id=principal.id,
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
            self._queue.wake()
            return
        if self._observer is not None:
            self._observer.notice(item)
        if item.noun != Noun.OPERATION or item.app_slug not in (None, self._app_slug):
            return
        if item.resource_id in self._runs:
            if item.event not in OUR_OPERATION_EVENTS:
                self._check_lease(item.resource_id)
        elif (
            item.app_slug is not None
            and item.event in _NEW_WORK
            and item.instance_id not in self._of_others
            and (work := self._queue.add(item.resource_id, item.instance_id, item.correlation_id))
        ):
            # Claimed at once: to list what can be claimed would only say the same again.
            self._start(work)
        elif item.event not in _NO_WORK:
            self._queue.wake()

    def _check_lease(self, operation_id: str) -> None:
        lease = self._runs[operation_id].lease
        if lease is not None:
            lease.check_now()

    def _start(self, item: WorkItem) -> None:
        self._runs[item.operation_id] = _Run(asyncio.create_task(self._work(item), name=item.operation_id))

    async def _dispatch_until_stopped(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                await self._dispatch()
                failures = 0
                await self._queue.wait(self._resync_seconds)
            except GpuaasError as error:
                failures += 1
                logger.warning("cannot look for work: %s", error)
                await self._queue.pause(PLATFORM_AWAY.delay(failures))

    async def _dispatch(self) -> None:
        operations = await self._client.operations.list(project_id=self._project_id, claimable=True).all()
        due = self._queue.replace(operations)
        for item in due.start:
            self._start(item)
        for item in due.doubtful:
            self._check_lease(item.operation_id)

    def _leave_to_others(self, instance_id: str | None) -> None:
        if len(self._of_others) >= MOST_REMEMBERED:
            self._of_others.clear()
        if instance_id is not None:
            self._of_others.add(instance_id)

    async def _work(self, item: WorkItem) -> None:
        id = item.operation_id
        later: RetryLater | None = None
        try:
            with correlation(item.correlation_id):
                claimed = await claim_operation(self._client, id, self._holder)
            self._of_others.discard(str(item.instance_id))
            if claimed is not None:
                claim, lease = claimed
                self._runs[id].lease = lease
                operation = claim.operation
                item.member_id = operation.member_id
                logger.info("%s: claimed, %s, attempt %s", id, operation.kind, operation.attempt)
                handler = self._handlers.get(operation.kind, _kind_not_handled)
                machines = self._machines(self._client, claim)
                later = await Worker(self._client, claim, lease, handler, machines).run()
        except NotOperatorError as error:
            logger.info("%s: left to its operator: %s", id, error)
            self._leave_to_others(item.instance_id)
        except TransportError as error:
            later = PlatformAway(error)
        except GpuaasError as error:
            later = RetryLater(None, str(error))
        except Exception:
            # A bug of ours, around the handler: it is said, and the operation is not hammered.
            logger.exception("%s: unexpected", id)
            later = RetryLater(None, "unexpected error in the controller")
        finally:
            del self._runs[id]
            if later is None:
                self._queue.done(item)
            else:
                self._queue.retry(item, later)


def _ssh_machines(client: GpuaasClient, claim: Claim) -> MachineAccess:
    # Imported on the first claim: a test of an app's handlers never needs SSH.
    from gpuaas_sdk.machines.ssh import SshMachineAccess

    return SshMachineAccess(client, claim)
