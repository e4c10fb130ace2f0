"""The real Machine: SSH with the operation's certificate, through the platform's stream; to an external machine
straight, with the key of its access credential."""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing, contextmanager

import asyncssh

from gpuaas_contract.access import AccessGrant, MachineAddress
from gpuaas_contract.artifacts import DeliverySource, DeliveryStatus
from gpuaas_contract.operations import Claim
from gpuaas_contract.reconcile import ReconcileClaim
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import (
    ANSWERS_LATER,
    ApiError,
    DeliveryFailedError,
    InvalidStateError,
    LeaseLostError,
    NotFoundError,
    TransportError,
    UnavailableError,
)
from gpuaas_sdk.machines import remote
from gpuaas_sdk.machines.access import GrantedAccess, MemberObserverAccess, OperationAccess, ReconcileAccess
from gpuaas_sdk.machines.base import (
    COPIED_ARTIFACTS,
    CommandError,
    CommandResult,
    Machine,
    MachineUnreachableError,
    NotObservableError,
    ObservedMachine,
)
from gpuaas_sdk.machines.connection import Answer, MachineConnection, Pieces, connect_directly, open_connection
from gpuaas_sdk.registry import RegistryError
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.runtime.secrets import LeaseSecrets

logger = logging.getLogger(__name__)

PATIENCE = 20.0
"""For so long a lost connection is made anew before the machine counts as unreachable: a restart of the
platform or of the node agent takes a few seconds."""
AGAIN = RetryPolicy(first_delay=0.2, longest_delay=3.0)
SPARE_SECONDS = 15.0
"""How much longer than the machine we wait ourselves before we give up on an answer."""
WAIT_FOR_OLDER = 900.0
"""A step may first have to wait for a unit that a predecessor left running."""
DELIVERY_WAIT = 20


class ObservedSshMachine:
    """One connection, reused and renewed; commands of one machine may run at the same time."""

    def __init__(self, access: GrantedAccess, address: MachineAddress) -> None:
        self._access = access
        self._address = address
        self._connection: MachineConnection | None = None
        self._grant: AccessGrant | None = None
        self._lock = asyncio.Lock()

    @property
    def allocation_id(self) -> str:
        return self._address.allocation_id

    @property
    def hostname(self) -> str:
        return self._address.hostname

    @property
    def address(self) -> str:
        return self._address.address

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        content = script.encode()
        command = remote.read_command(self._access.correlation, content, timeout)
        answer = await self.run_repeatable(command, content, timeout + SPARE_SECONDS)
        return CommandResult(
            answer.exit_status, answer.stdout.decode(errors="replace"), answer.stderr.decode(errors="replace")
        )

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def run_repeatable(self, command: str, content: bytes | Pieces, timeout: float) -> Answer:
        """Run a command with `content` as its input. A cut connection is made anew and the command repeated, so it must
        be one that may run twice: those of `remote` are."""
        loop = asyncio.get_running_loop()
        failures, lost_since = 0, 0.0
        while True:
            connection: MachineConnection | None = None
            try:
                async with asyncio.timeout(timeout):
                    connection = await self._connected()
                    return await connection.run(command, content)
            except TimeoutError:
                if connection is not None:
                    connection.retire()
                raise MachineUnreachableError(f"{self.hostname} did not answer in {timeout:.0f} s") from None
            except TransportError as error:
                # Patience is counted from the loss: a long command that was cut has all of it.
                now = loop.time()
                if connection is not None:
                    failures, lost_since = 0, now
                failures += 1
                lost_since = lost_since or now
                if now - lost_since > PATIENCE:
                    raise MachineUnreachableError(f"{self.hostname}: {error}") from None
                logger.info("%s: %s; connecting again", self.hostname, error)
                await asyncio.sleep(AGAIN.delay(failures))

    async def _connected(self) -> MachineConnection:
        async with self._lock:
            if self._connection is not None and self._grant is not None:
                if self._connection.is_open and not self._access.is_stale(self._grant):
                    return self._connection
                self._connection.retire()
                self._connection = None
            self._connection = await self._open()
            return self._connection

    async def _open(self) -> MachineConnection:
        """Map temporary failures to TransportError, permanent ones to MachineUnreachableError."""
        try:
            try:
                return await self._open_with(await self._access.grant())
            except (InvalidStateError, NotFoundError, asyncssh.PermissionDenied):
                # The grant has ended before its time, for example with a restart: once more with a new one.
                return await self._open_with(await self._access.grant(not_this=self._grant))
        except LeaseLostError:
            raise
        except UnavailableError as error:
            raise TransportError(str(error)) from error
        except ApiError as error:
            raise MachineUnreachableError(f"{self.hostname}: {error}") from None
        except asyncssh.HostKeyNotVerifiable as error:
            raise MachineUnreachableError(
                f"{self.hostname} did not prove its identity, so nothing was sent to it: {error}"
            ) from None
        except asyncssh.PermissionDenied as error:
            stored = self._address.direct is not None or self._address.credential_id is not None
            what = "stored key" if stored else "certificate"
            raise MachineUnreachableError(f"{self.hostname} refused the {what}: {error}") from None
        except (asyncssh.Error, OSError) as error:
            raise TransportError(f"cannot log in: {error}") from error

    async def _open_with(self, grant: AccessGrant) -> MachineConnection:
        self._grant = grant
        address = self._access.address_in(grant, self.allocation_id)
        if address is None:
            reason = self._access.reason_in(grant, self.allocation_id)
            raise MachineUnreachableError(reason or f"{self.hostname} is no longer a machine that this lease opens")
        if address.direct is not None:
            key = await self._access.stored_key(address.direct.credential_id)
            return await connect_directly(address.address, address.direct, key)
        if address.credential_id is not None:
            key = await self._access.stored_key(address.credential_id)
            return await open_connection(self._access.client, grant, address, key, stored=True)
        return await open_connection(self._access.client, grant, address, self._access.key)


class SshMachine(ObservedSshMachine):
    """A machine that may be changed, under the fencing token of its operation."""

    def __init__(self, access: OperationAccess, address: MachineAddress) -> None:
        super().__init__(access, address)
        self.claim = access.claim

    @property
    def fence(self) -> remote.Fence:
        return remote.Fence.of(self.claim)

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        content = script.encode()
        command = remote.step_command(self.fence, step, content, call=uuid.uuid4().hex, timeout=timeout)
        answer = await self.run_repeatable(command, content, timeout + WAIT_FOR_OLDER)
        what = f"run step {step} on {self.hostname}"
        result = remote.step_result(what, answer.exit_status, answer.stdout, answer.stderr)
        if not result.ok:
            raise CommandError(what, result)
        return result

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        data = content.encode() if isinstance(content, str) else content
        await self._write(path, data, len(data), mode=mode, owner=owner, group=group)

    async def _write(
        self, path: str, content: bytes | Pieces, length: int, *, mode: int, owner: str = "root", group: str = "root"
    ) -> None:
        command = remote.file_command(self.fence, path, length, mode=mode, owner=owner, group=group)
        answer = await self.run_repeatable(command, content, WAIT_FOR_OLDER)
        what = f"write {path} on {self.hostname}"
        remote.check_file_written(what, answer.exit_status, answer.stdout, answer.stderr)

    async def deliver(self, digest: str) -> str:
        client, claim = self._access.client, self.claim
        try:
            delivery = await client.operations.deliver(
                claim.operation.id, claim.fencing_token, allocation_id=self.allocation_id, digest=digest
            )
        except (LeaseLostError, *ANSWERS_LATER):
            raise
        except ApiError as error:
            raise DeliveryFailedError(f"cannot deliver {digest} to {self.hostname}: {error}") from None
        if delivery.source is not None:
            return await self._copy(delivery.source)
        while delivery.status == DeliveryStatus.PENDING:
            delivery = await client.deliveries.get(delivery.id, wait=DELIVERY_WAIT)
        if delivery.status == DeliveryStatus.FAILED or delivery.path is None:
            raise DeliveryFailedError(f"cannot deliver {digest} to {self.hostname}: {delivery.reason}")
        return delivery.path

    async def _copy(self, source: DeliverySource) -> str:
        """To a machine without an agent, over the connection that there is; once."""
        path = f"{COPIED_ARTIFACTS}/{source.digest.removeprefix('sha256:')}"
        if not (await self.read(f"test -e {path}")).ok:
            registry, where = self._access.client.registry, (source.repository, source.digest)
            with self._is_delivery(source):
                size = await registry.size(*where)

            async def pieces() -> AsyncGenerator[bytes]:
                with self._is_delivery(source):
                    async with aclosing(registry.read(*where, size)) as read:
                        async for piece in read:
                            yield piece

            await self.run_step("make-room-for-artifacts", f"mkdir -p {COPIED_ARTIFACTS}")
            await self._write(path, pieces, size, mode=0o444)
        return path

    @contextmanager
    def _is_delivery(self, source: DeliverySource) -> Iterator[None]:
        """Report a failure of the registry as a failed delivery, not as a failure of the machine."""
        try:
            yield
        except (RegistryError, TransportError) as error:
            raise DeliveryFailedError(f"cannot deliver {source.digest} to {self.hostname}: {error}") from None


class SshObservers:
    """The machines of one instance, for the holder of its reconcile lease."""

    def __init__(self, client: GpuaasClient, claim: ReconcileClaim, correlation: str) -> None:
        self._access: GrantedAccess = ReconcileAccess(client, claim, correlation)
        self._machines: dict[str, ObservedSshMachine] = {}
        self._known: AccessGrant | None = None
        self._asked_for: frozenset[str] = frozenset()

    async def prepare(self, allocation_ids: Collection[str]) -> None:
        """A grant is for the machines of its moment: where members have come or gone, another one is asked for."""
        wanted = frozenset(allocation_ids)
        outdated = None if wanted == self._asked_for else self._known
        self._known = await self._access.grant(not_this=outdated)
        self._asked_for = wanted

    def machine(self, allocation_id: str) -> ObservedMachine:
        if allocation_id not in self._machines:
            address = self._access.address_in(self._known, allocation_id) if self._known is not None else None
            if address is None:
                reason = self._access.reason_in(self._known, allocation_id)
                raise NotObservableError(reason or f"{allocation_id} is not a machine that can be observed")
            self._machines[allocation_id] = ObservedSshMachine(self._access, address)
        return self._machines[allocation_id]

    async def close(self) -> None:
        await asyncio.gather(*(machine.close() for machine in self._machines.values()))


class SshMachineAccess:
    """The machines of one claimed operation, and those of the other members to look at."""

    def __init__(self, client: GpuaasClient, claim: Claim) -> None:
        self._access = OperationAccess(client, claim)
        self._observers = MemberObserverAccess(client, claim)
        self._machines: dict[str, SshMachine] = {}
        self._observed: dict[str, ObservedSshMachine] = {}
        self._known: AccessGrant | None = None

    @property
    def secrets(self) -> LeaseSecrets:
        return self._access.secrets

    async def prepare(self) -> None:
        self._known = await self._access.grant()

    def machine(self, allocation_id: str) -> Machine:
        if allocation_id not in self._machines:
            address = self._access.address_in(self._known, allocation_id) if self._known is not None else None
            if address is None:
                reason = self._access.reason_in(self._known, allocation_id)
                raise MachineUnreachableError(reason or f"{allocation_id} is not an active machine of this operation")
            self._machines[allocation_id] = SshMachine(self._access, address)
        return self._machines[allocation_id]

    async def observed_machine(self, allocation_id: str) -> ObservedMachine:
        if allocation_id not in self._observed:
            access = self._observers
            grant = await access.grant()
            if access.address_in(grant, allocation_id) is None:
                # A grant is for the machines of its moment: a member may have joined since.
                grant = await access.grant(not_this=grant)
            if (address := access.address_in(grant, allocation_id)) is None:
                reason = access.reason_in(grant, allocation_id)
                raise NotObservableError(reason or f"{allocation_id} is not a machine of this instance")
            self._observed.setdefault(allocation_id, ObservedSshMachine(access, address))
        return self._observed[allocation_id]

    async def close(self) -> None:
        machines = [*self._machines.values(), *self._observed.values()]
        await asyncio.gather(*(machine.close() for machine in machines))
