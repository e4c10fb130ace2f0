"""The context that a handler gets of its operation."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from gpuaas_contract.base import JsonObject
from gpuaas_contract.catalogue import AppVersion
from gpuaas_contract.instances import AccessNote, Condition, Instance, Member, MemberStatus
from gpuaas_contract.operations import (
    EVIDENCE_BYTES,
    MOST_COMMANDS,
    Claim,
    Operation,
    OperationState,
    RemoteCommand,
    StepStatus,
)
from gpuaas_contract.people import Person
from gpuaas_contract.secrets import SecretSpec
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ANSWERS_LATER, GpuaasError, LeaseLostError
from gpuaas_sdk.machines.base import (
    CommandError,
    Machine,
    MachineUnreachableError,
    NotObservableError,
    ObservedMachine,
)
from gpuaas_sdk.machines.noted import NotedMachine
from gpuaas_sdk.runtime.errors import OperationCancelled, OperationFailed, RetryLater
from gpuaas_sdk.runtime.secrets import LeaseSecrets
from gpuaas_sdk.runtime.waits import MEMBER_FAILED, Found, MemberWait, Statuses, wait_for
from gpuaas_sdk.secret_value import SecretValue

MESSAGE_LIMIT = 4_000
LOOKS_FOR_EACH_END = 10
_COMING = {MemberStatus.PENDING, MemberStatus.CONFIGURING}


class MachineAccess(Protocol):
    """The machines of one claimed operation, for as long as its lease is held."""

    async def prepare(self) -> None:
        """Ask for access once, so that `machine` can answer without waiting."""
        ...

    def machine(self, allocation_id: str) -> Machine:
        """Return the machine; raise MachineUnreachableError if the platform gives no access to it."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class HoldsSecrets(Protocol):
    """Machine access that opens external machines has fetched their keys under the same lease."""

    @property
    def secrets(self) -> LeaseSecrets: ...


@runtime_checkable
class ObservesMembers(Protocol):
    """Machine access that lets one look at the machines of all members of the instance."""

    async def observed_machine(self, allocation_id: str) -> ObservedMachine: ...


def words_for(error: BaseException) -> str:
    """Describe an error for people. The text of an unexpected one is left out: it may hold anything."""
    if isinstance(
        error,
        RetryLater
        | OperationFailed
        | OperationCancelled
        | MachineUnreachableError
        | CommandError
        | GpuaasError
        | TimeoutError,
    ):
        return str(error) or type(error).__name__
    return f"{type(error).__name__} in the controller; its log has the details"


def command_failed(error: CommandError, *, member_usable: bool = False) -> OperationFailed:
    """A machine answered and refused: the message has the end of its output."""
    return OperationFailed("command_failed", str(error), retryable=True, member_usable=member_usable)


def bounded(text: str) -> str:
    clean = text.replace("\x00", "")
    return clean if len(clean) <= MESSAGE_LIMIT else "… " + clean[-(MESSAGE_LIMIT - 2) :]


class StepHandle:
    """One step while it runs.

    Attributes:
        key: its name within the operation.
        title: what people read.
        message: set it; it is reported when the step ends, and at once by `progress`.
        evidence: set it; at most 64 KiB as JSON, reported when the step ends. Never a secret.
    """

    def __init__(self, context: "OperationContext", key: str, title: str) -> None:
        self._context = context
        self.key = key
        self.title = title
        self.message = ""
        self.evidence: JsonObject = {}
        self._commands: deque[RemoteCommand] = deque(maxlen=MOST_COMMANDS)

    def note(self, command: RemoteCommand) -> None:
        """Record a command that ran on a machine; the context's machines call this."""
        self._commands.append(command)

    async def progress(self, message: str) -> None:
        """Report progress while the step is still running."""
        self.message = message
        await self._report(StepStatus.RUNNING)

    async def _report(self, status: StepStatus, message: str | None = None) -> None:
        context = self._context
        answer = await context.client.operations.report_step(
            context.operation_id,
            context.fencing_token,
            key=self.key,
            title=self.title,
            status=status,
            message=bounded(self.message if message is None else message),
            evidence=_bounded_evidence(self.evidence),
            commands=self._commands,
        )
        if answer.cancel_requested:
            context.request_cancel()


def _bounded_evidence(evidence: JsonObject) -> JsonObject:
    """Leave out evidence that the platform would refuse: the step itself must be reported all the same."""
    size = len(json.dumps(evidence, default=str).encode())
    if size <= EVIDENCE_BYTES:
        return evidence
    return {"left_out": f"{size} bytes are more than the {EVIDENCE_BYTES} that a step may show; see the result"}


_step: ContextVar[StepHandle | None] = ContextVar("step", default=None)
"""The step that is under way in this task."""


def _note(command: RemoteCommand) -> None:
    step = _step.get()
    if step is not None:
        step.note(command)


def _failure_of(error: Exception, *, member_usable: bool) -> Exception:
    """The failure of an operation whose member works as before, where it does; else the error as it is."""
    if member_usable and isinstance(error, CommandError):
        return command_failed(error, member_usable=True)
    if member_usable and isinstance(error, OperationFailed):
        error.member_usable = True
    return error


class OperationContext:
    """One claimed operation: its facts, its steps, its machines and its reports.

    Attributes:
        client: the API, under the controller's own account.
        operation: the operation as it was when it was claimed: its kind, input, member_id and deadline.
        fencing_token: the number of this claim; every write under the lease carries it.
        statuses_on_success: member statuses by member id, which take effect together with the success of the
            operation, or not at all.
        cancel_requested: whether somebody has called it off: the next step, `wait_for` and `check_cancelled` raise.
    """

    def __init__(self, client: GpuaasClient, claim: Claim, machines: MachineAccess) -> None:
        self.client = client
        self.operation: Operation = claim.operation
        self.fencing_token = claim.fencing_token
        self._machines = machines
        # A lease gets each secret once: what was fetched to reach a machine is not asked for again.
        self._secrets = (
            machines.secrets
            if isinstance(machines, HoldsSecrets)
            else LeaseSecrets(client, claim.operation.id, claim.fencing_token)
        )
        self.statuses_on_success: dict[str, MemberStatus] = {}
        self.cancel_requested = claim.operation.cancel_requested
        self._cancelled = asyncio.Event()
        self._looks: Counter[str] = Counter()

    def request_cancel(self) -> None:
        """Cancel the operation: no further step begins, and waits end."""
        self.cancel_requested = True
        self._cancelled.set()

    def check_cancelled(self) -> None:
        """Raise if the operation is being cancelled: for handlers that work long within one step."""
        if self.cancel_requested:
            raise OperationCancelled("the operation is being cancelled")

    async def wait_for(
        self,
        what: str,
        condition: Callable[[], Awaitable[Found | None]],
        *,
        every: float = 1.0,
        seconds: float | None = None,
    ) -> Found:
        """Wait inside a step until the condition answers something other than None, and return that.

        The lease stays held, so no phase runs again. A condition that raises RetryLater, and a machine or platform that
        does not answer, mean "not yet". Ends at once with OperationCancelled where the operation is called off; after
        `seconds`, and just before the operation's deadline, with OperationFailed(`wait_timed_out`), which can be
        retried.
        """
        return await wait_for(
            what,
            condition,
            every=every,
            seconds=seconds,
            operation=self.operation,
            cancelled=self._cancelled,
            check_cancelled=self.check_cancelled,
        )

    async def wait_for_members(
        self,
        member_ids: Iterable[str] | None = None,
        *,
        component_key: str | None = None,
        status: Statuses = MemberStatus.READY,
        every: float = 1.0,
        seconds: float | None = None,
        failure_code: str = MEMBER_FAILED,
    ) -> list[Member]:
        """Wait until these members are in `status`, or in one of several, and return them.

        Without ids: all members but this operation's own, those of `component_key` alone where it is given; who joins
        meanwhile is waited for, who is removed is not. Ends like `wait_for`. A member that failed, or that was named
        and is removed, ends the wait with OperationFailed(`failure_code`), which says why and can be retried. The step
        that is under way says what is waited for; where there is none, there is one for the wait, `wait-for-members`.
        """
        return await self._wait_for_members(
            "members",
            None if member_ids is None else [*dict.fromkeys(member_ids)],
            component_key,
            status,
            every=every,
            seconds=seconds,
            failure_code=failure_code,
        )

    async def wait_for_primary(
        self,
        *,
        status: Statuses = MemberStatus.READY,
        every: float = 1.0,
        seconds: float | None = None,
        failure_code: str = MEMBER_FAILED,
    ) -> Member:
        """Wait for the member of the manifest's primary component, as `wait_for_members` does, and return it."""

        async def find() -> str:
            primary_key = (await self.app_version()).manifest.primary.key
            for member in await self.members():
                if member.component_key == primary_key and member.status != MemberStatus.REMOVED:
                    return member.id
            raise OperationFailed(failure_code, f"the instance has no {primary_key} any more", retryable=True)

        ids = [await self.wait_for("the members of the instance to be known", find, every=every, seconds=seconds)]
        (primary,) = await self._wait_for_members(
            "primary", ids, None, status, every=every, seconds=seconds, failure_code=failure_code
        )
        return primary

    async def _wait_for_members(
        self,
        whom: str,
        ids: list[str] | None,
        component_key: str | None,
        status: Statuses,
        *,
        every: float,
        seconds: float | None,
        failure_code: str,
    ) -> list[Member]:
        if (step := _step.get()) is None:
            async with self.step(f"wait-for-{whom}", f"Wait for the {whom}"):
                return await self._wait_for_members(
                    whom, ids, component_key, status, every=every, seconds=seconds, failure_code=failure_code
                )
        wait = MemberWait(self, ids, component_key, status, failure_code, step.progress)
        before = step.message
        try:
            return await wait.run(every=every, seconds=seconds)
        finally:
            step.message = before

    @property
    def operation_id(self) -> str:
        """The id of the operation."""
        return self.operation.id

    @property
    def correlation_id(self) -> str:
        """The id that ties all traces of the request together, from the API's audit to the machines' journals."""
        return self.operation.correlation_id

    @property
    def instance_id(self) -> str:
        """The id of the instance that it is about; a preflight has none, and raises ValueError."""
        if self.operation.instance_id is None:
            raise ValueError(f"{self.operation.kind} has no instance yet")
        return self.operation.instance_id

    async def instance(self) -> Instance:
        return await self.client.instances.get(self.instance_id)

    async def members(self) -> list[Member]:
        """All members of the instance, also removed ones."""
        return await self.client.instances.members(self.instance_id).all()

    async def people(self) -> list[Person]:
        """Everybody who may use the instance now; for an app without an entrance nobody. Who just lost the right is
        among them, with `left_at`, until the machines end what is left of them."""
        return await self.client.instances.people(self.instance_id).all()

    async def has_failed(self, member: Member) -> bool:
        """Whether nobody brings it up any more, for whoever waits for it.

        It failed, and nobody is about to try it again: until that begins, it shows its failure still. Or it is coming,
        but its operation ended without a word about it, as one does at its deadline. The latter is looked at every
        tenth time only, since the members of a large deploy all wait at once."""
        last = member.last_operation_id
        if member.status == MemberStatus.FAILED:
            return last is None or (await self.client.operations.get(last)).state.is_final
        if member.status not in _COMING or last is None:
            return False
        self._looks[member.id] += 1
        if self._looks[member.id] % LOOKS_FOR_EACH_END:
            return False
        state = (await self.client.operations.get(last)).state
        return state.is_final and state != OperationState.SUCCEEDED

    async def members_before(self, key: str) -> set[str]:
        """Ids of the members that never came to the step of that key, or to one named after it (`key-…`): none of their
        operations has announced it, and a step is announced before its effect. A member without known operations is
        not among them."""
        known, announced = set(), set()
        for operation in await self.client.operations.list(instance_id=self.instance_id).all():
            about = {operation.member_id, operation.replacement_member_id} - {None}
            known |= about
            if any(step.key == key or step.key.startswith(f"{key}-") for step in operation.steps):
                announced |= about or {member.id for member in await self.members()}
        return {member_id for member_id in known - announced if member_id is not None}

    async def app_version(self) -> AppVersion:
        """The version that the instance was deployed with: its manifest names the artifacts by digest."""
        instance = await self.instance()
        return await self.client.app_versions.get(instance.app_slug, instance.versions.app)

    def machine(self, allocation_id: str) -> Machine:
        """Return the machine; it records its commands with the current step."""
        return NotedMachine(self._machines.machine(allocation_id), self.operation_id, _note)

    async def observed_machine(self, allocation_id: str) -> ObservedMachine:
        """Return the machine of any member of the instance, also of those that this operation is not about. It has
        `read` alone, which runs as an observer without rights, for as long as the lease lasts.

        Raises NotObservableError, which says why, on an external machine and on one that is not active."""
        if not isinstance(self._machines, ObservesMembers):
            raise NotObservableError(f"cannot look at {allocation_id}: there are no observers here")
        return await self._machines.observed_machine(allocation_id)

    async def secret(self, name: str, spec: SecretSpec | None = None, *, version: int | None = None) -> SecretValue:
        """Fetch the instance's secret of that name; create a missing one as the manifest or `spec` declares it."""
        return await self._secrets.secret(name, spec, version=version)

    async def credential(self, credential_id: str, *, version: int | None = None) -> SecretValue:
        """Fetch the private key of an access credential of the project, in OpenSSH form."""
        return await self._secrets.credential(credential_id, version=version)

    @asynccontextmanager
    async def step(self, key: str, title: str, *, member_usable: bool = False) -> AsyncIterator[StepHandle]:
        """A step is announced before its effect, so that a successor looks before it repeats.

        An exception is reported as the step's failure and goes on; where the operation will come back by
        itself (RetryLater, a machine or a platform that does not answer), the message says so. With `member_usable`
        the member counts as usable also where the step fails: a drain that was refused breaks nothing.
        """
        self.check_cancelled()
        step = StepHandle(self, key, title)
        await step._report(StepStatus.RUNNING)
        if self.cancel_requested:
            await step._report(StepStatus.FAILED, "cancelled before it began")
        self.check_cancelled()
        before = _step.get()
        _step.set(step)
        try:
            yield step
        except LeaseLostError:
            raise
        except (RetryLater, MachineUnreachableError, *ANSWERS_LATER) as error:
            await step._report(StepStatus.FAILED, f"will be tried again: {words_for(error)}")
            raise
        except Exception as error:
            failure = _failure_of(error, member_usable=member_usable)
            if isinstance(failure, OperationFailed) and failure.evidence:
                step.evidence = failure.evidence
            said = words_for(failure)
            await step._report(StepStatus.FAILED, f"{step.message}: {said}" if step.message else said)
            if failure is error:
                raise
            raise failure from error
        finally:
            _step.set(before)
        await step._report(StepStatus.SUCCEEDED)

    async def report_member(
        self,
        member_id: str,
        *,
        status: MemberStatus | None = None,
        conditions: Sequence[Condition] | None = None,
        adapter_detail: JsonObject | None = None,
    ) -> Member:
        return await self.client.members.report(
            member_id, self, status=status, conditions=conditions, adapter_detail=adapter_detail
        )

    async def report_instance(
        self,
        *,
        conditions: Sequence[Condition] | None = None,
        access_notes: Sequence[AccessNote] | None = None,
        observed_runtime: str | None = None,
    ) -> Instance:
        return await self.client.instances.report(
            self.instance_id,
            self,
            conditions=conditions,
            access_notes=access_notes,
            observed_runtime=observed_runtime,
        )
