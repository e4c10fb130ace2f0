"""Observe instances under their reconcile leases: one process for each, at an interval and after changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol

from gpuaas_contract.base import JsonObject
from gpuaas_contract.changes import Change
from gpuaas_contract.events import InstanceEvent, MemberEvent, OperationEvent
from gpuaas_contract.instances import Condition, Instance, InstanceStatus, Member, MemberStatus
from gpuaas_contract.nouns import Noun
from gpuaas_contract.operations import Operation
from gpuaas_contract.people import Person
from gpuaas_contract.reconcile import ReconcileClaim
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.correlation import correlation, current_correlation_id
from gpuaas_sdk.errors import ConflictError, GpuaasError, LeaseLostError, NotFoundError, NotOperatorError
from gpuaas_sdk.machines.base import MachineUnreachableError, ObservedMachine
from gpuaas_sdk.machines.parallel import AT_ONCE
from gpuaas_sdk.observations import Observation, unknown
from gpuaas_sdk.runtime.errors import RetryLater
from gpuaas_sdk.runtime.lease import KeptReconcileLease

logger = logging.getLogger(__name__)

OBSERVE_SECONDS = 30.0
SHORTEST_PAUSE = 1.0
"""Between two looks at the same instance, however much happens to it."""
HAND_BACK_SECONDS = 5.0
LOOK_SECONDS = 60.0
OUR_OPERATION_EVENTS = frozenset(
    {
        OperationEvent.CLAIMED,
        OperationEvent.STEP_RUNNING,
        OperationEvent.STEP_SUCCEEDED,
        OperationEvent.STEP_FAILED,
    }
)
"""Caused by controllers themselves."""
_OUR_OWN_EVENTS = OUR_OPERATION_EVENTS | {InstanceEvent.REPORTED, MemberEvent.REPORTED}
_NOUNS = frozenset({Noun.INSTANCE, Noun.MEMBER, Noun.OPERATION})


class ObservedMachines(Protocol):
    """The machines of one instance, for as long as its reconcile lease is held."""

    async def prepare(self, allocation_ids: Collection[str]) -> None: ...

    def machine(self, allocation_id: str) -> ObservedMachine: ...

    async def close(self) -> None: ...


class ObserveContext:
    """The context that an `observe` handler gets of one instance. The handler can look and report; to change something,
    it requests an operation, which then runs like any other.

    Attributes:
        client: the API, under the controller's own account.
        fencing_token: the number of this claim of the reconcile lease.
        instance: the instance as it was when this look began.
        members: all of its members then, also removed ones.
        operation_id: always None, since reports under this context go under the reconcile lease.
    """

    operation_id = None

    def __init__(
        self,
        client: GpuaasClient,
        fencing_token: int,
        machines: ObservedMachines,
        instance: Instance,
        members: list[Member],
    ) -> None:
        self.client = client
        self.fencing_token = fencing_token
        self.instance = instance
        self.members = members
        self._machines = machines
        self._told: set[str] = set()
        """The ids that were reported in this look: those resources are no longer as they were read."""

    @property
    def instance_id(self) -> str:
        """The id of the instance."""
        return self.instance.id

    @property
    def live_members(self) -> list[Member]:
        """Those that are not removed."""
        return [member for member in self.members if member.status != MemberStatus.REMOVED]

    def machine(self, allocation_id: str) -> ObservedMachine:
        """Raises MachineUnreachableError where there is no observer on it: on an external machine, for example."""
        return self._machines.machine(allocation_id)

    async def observe_members(
        self,
        members: Iterable[Member],
        look: Callable[[ObservedMachine, Member], Awaitable[Observation]],
        *,
        at_once: int = AT_ONCE,
        seconds: float = LOOK_SECONDS,
    ) -> dict[str, Observation]:
        """Look at the machines of these members, at most `at_once` at a time; return what was seen by member id.

        A machine without an observer, one that does not answer, and a look that takes longer than `seconds` are
        unknown: one machine neither holds up the others nor ends the round."""
        if at_once < 1:
            raise ValueError("cannot observe machines: at_once is at least 1")
        free = asyncio.Semaphore(at_once)

        async def one(member: Member) -> Observation:
            async with free:
                try:
                    async with asyncio.timeout(seconds):
                        return await look(self.machine(member.allocation_id), member)
                except MachineUnreachableError as error:
                    return unknown(str(error))
                except TimeoutError:
                    return unknown(f"the look at {member.allocation_id} took longer than {seconds:g} s")

        chosen = list(members)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(member)) for member in chosen]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {member.id: task.result() for member, task in zip(chosen, tasks, strict=True)}

    async def people(self) -> list[Person]:
        """Everybody who may use the instance now. A change of them ends the pause before the next look."""
        return await self.client.instances.people(self.instance_id).all()

    async def report_instance(
        self, *, conditions: Sequence[Condition] | None = None, observed_runtime: str | None = None
    ) -> Instance:
        """Report only what is new: an observation without news sends nothing."""
        known = self.instance
        if self._all_known(known, conditions) and observed_runtime in (None, known.versions.observed_runtime):
            return known
        self._told.add(self.instance_id)
        return await self.client.instances.report(
            self.instance_id, self, conditions=conditions, observed_runtime=observed_runtime
        )

    async def report_member(
        self,
        member_id: str,
        *,
        conditions: Sequence[Condition] | None = None,
        adapter_detail: JsonObject | None = None,
    ) -> Member:
        """Report a member, where something changed."""
        known = next((member for member in self.members if member.id == member_id), None)
        if known is not None and self._all_known(known, conditions) and adapter_detail in (None, known.adapter_detail):
            return known
        self._told.add(member_id)
        return await self.client.members.report(member_id, self, conditions=conditions, adapter_detail=adapter_detail)

    def _all_known(self, known: Instance | Member, said: Sequence[Condition] | None) -> bool:
        if known.id in self._told:
            return False
        words = [condition.model_dump(exclude={"changed_at"}) for condition in known.conditions]
        return all(condition.model_dump(exclude={"changed_at"}) in words for condition in said or [])

    async def request(self, kind: str, *, member_id: str | None = None, input: JsonObject | None = None) -> Operation:
        """Request an operation that the app's manifest declares: a repair, for example."""
        return await self.client.instances.request(self.instance_id, kind, member_id=member_id, input=input)


ObserveHandler = Callable[[ObserveContext], Awaitable[None]]
ObservedMachinesFactory = Callable[[GpuaasClient, ReconcileClaim, str], ObservedMachines]


class Observer:
    """Holds the reconcile leases that it can get and calls the handler for each of those instances."""

    def __init__(
        self,
        client: GpuaasClient,
        handler: ObserveHandler,
        *,
        app_slug: str,
        account_id: str,
        project_id: str | None,
        holder: str,
        interval: float = OBSERVE_SECONDS,
        machines: ObservedMachinesFactory | None = None,
    ) -> None:
        self._client = client
        self._handler = handler
        self._app_slug = app_slug
        self._account_id = account_id
        self._project_id = project_id
        self._holder = holder
        self._interval = interval
        self._machines = machines or _ssh_observers
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._look_again = asyncio.Event()

    def notice(self, change: Change) -> None:
        if change.noun not in _NOUNS or change.event in _OUR_OWN_EVENTS or change.instance_id is None:
            return
        if change.app_slug not in (None, self._app_slug):
            return
        if (wake := self._wakes.get(change.instance_id)) is not None:
            wake.set()
        elif change.noun == Noun.INSTANCE:
            self._look_again.set()

    async def run(self) -> None:
        """Run until cancelled; then hand the leases back."""
        try:
            while True:
                self._look_again.clear()
                try:
                    await self._take_free_ones()
                except GpuaasError as error:
                    logger.warning("cannot list instances: %s", error)
                await _wait(self._look_again, self._interval)
        finally:
            watches = list(self._watches.values())
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _take_free_ones(self) -> None:
        async for instance in self._client.instances.list(project_id=self._project_id):
            if instance.app_slug != self._app_slug or instance.status == InstanceStatus.DECOMMISSIONED:
                continue
            if instance.operator_account_id not in (None, self._account_id):
                continue
            held = instance.reconcile_lease is not None and not instance.reconcile_lease.expired
            if instance.id not in self._watches and not held:
                watch = asyncio.create_task(self._watch(instance.id), name=f"observe {instance.id}")
                self._watches[instance.id] = watch

    async def _watch(self, instance_id: str) -> None:
        try:
            claimed_at = asyncio.get_running_loop().time()
            try:
                claim = await self._client.reconcile_leases.claim(instance_id, self._holder)
            except (ConflictError, NotFoundError, NotOperatorError) as error:
                logger.info("%s: not observed by us: %s", instance_id, error)
                return
            await self._look_after(claim, KeptReconcileLease(self._client, claim, claimed_at=claimed_at))
        except GpuaasError as error:
            logger.warning("%s: cannot observe it now: %s", instance_id, error)
        except Exception:
            logger.exception("%s: unexpected", instance_id)
        finally:
            self._watches.pop(instance_id, None)

    async def _look_after(self, claim: ReconcileClaim, lease: KeptReconcileLease) -> None:
        instance_id = claim.lease.instance_id
        wake = self._wakes[instance_id] = asyncio.Event()
        machines = self._machines(self._client, claim, current_correlation_id())
        keeper = asyncio.create_task(lease.keep())
        looking = asyncio.create_task(self._look_for_ever(claim, machines, wake))
        try:
            await asyncio.wait({keeper, looking}, return_when=asyncio.FIRST_COMPLETED)
            if keeper.done():
                logger.warning("%s: %s; observation stops", instance_id, keeper.exception())
            else:
                looking.result()
        except LeaseLostError as error:
            logger.warning("%s: %s; observation stops", instance_id, error)
        finally:
            self._wakes.pop(instance_id, None)
            lost = keeper.done()
            for task in (keeper, looking):
                task.cancel()
            await asyncio.gather(keeper, looking, return_exceptions=True)
            await machines.close()
            if not lost:
                await self._hand_back(claim)

    async def _look_for_ever(self, claim: ReconcileClaim, machines: ObservedMachines, wake: asyncio.Event) -> None:
        while True:
            wake.clear()
            with correlation(None):
                if not await self._look(claim, machines):
                    return
            await asyncio.sleep(min(SHORTEST_PAUSE, self._interval))
            await _wait(wake, self._interval)

    async def _look(self, claim: ReconcileClaim, machines: ObservedMachines) -> bool:
        """Observe once; return False if there is nothing left to observe."""
        instance_id = claim.lease.instance_id
        try:
            instance = await self._client.instances.get(instance_id)
            if instance.status == InstanceStatus.DECOMMISSIONED:
                return False
            members = await self._client.instances.members(instance_id).all()
            live = [member.allocation_id for member in members if member.status != MemberStatus.REMOVED]
            await machines.prepare(live)
            await self._handler(ObserveContext(self._client, claim.fencing_token, machines, instance, members))
        except LeaseLostError:
            raise
        except (RetryLater, MachineUnreachableError, GpuaasError) as error:
            logger.warning("%s: the observation failed: %s", instance_id, error)
        except Exception:
            logger.exception("%s: bug in the observe handler", instance_id)
        return True

    async def _hand_back(self, claim: ReconcileClaim) -> None:
        try:
            async with asyncio.timeout(HAND_BACK_SECONDS):
                await self._client.reconcile_leases.yield_lease(claim.lease.instance_id, claim.fencing_token)
        except (GpuaasError, TimeoutError) as error:
            logger.info("%s: lease not handed back, it will expire: %s", claim.lease.instance_id, error)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _ssh_observers(client: GpuaasClient, claim: ReconcileClaim, correlation_id: str) -> ObservedMachines:
    # Imported when it is needed: a test of an app's handlers never needs SSH.
    from gpuaas_sdk.machines.ssh import SshObservers

    return SshObservers(client, claim, correlation_id)
