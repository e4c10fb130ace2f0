"""The operations of a platform in memory: leases that expire, tokens that grow, a feed, and faults on demand."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from gpuaas_contract.changes import Change
from gpuaas_contract.identity import Principal, PrincipalKind
from gpuaas_contract.operations import (
    Claim,
    Lease,
    Operation,
    OperationError,
    OperationState,
    RemoteCommand,
    Step,
    StepStatus,
    WorkAcknowledged,
)
from gpuaas_contract.problems import Code, Problem
from gpuaas_sdk import GpuaasClient, Machine, MachineUnreachableError, Relist, clock
from gpuaas_sdk.errors import ApiError, TransportError, error_from_problem
from gpuaas_sdk.runtime.controller import Controller
from gpuaas_sdk.runtime.worker import Handler

LEASE_SECONDS = 0.6


def refusal(code: Code) -> ApiError:
    problem = Problem(type="x", title="x", status=409, detail=code.value, code=code, correlation_id="cor_1")
    return error_from_problem(problem)


def _now() -> float:
    """The loop's time, which a simulation lets jump."""
    return asyncio.get_running_loop().time()


class _All:
    def __init__(self, items: list[Any]) -> None:
        self._items = items

    async def all(self) -> list[Any]:
        return self._items


class MemoryPlatform:
    """Stands for the client: `operations` is itself, as far as the runtime needs it."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.log: list[str] = []
        self.lists = 0
        self.away = False
        self.turned_away = 0
        """Requests that had no answer because the platform was away."""
        self.refuses: Code | None = None
        """Every request, with this: a disabled account, for example."""
        self.of_others: set[str] = set()
        """Instances that another account is the operator of."""
        self.kind = PrincipalKind.SERVICE_ACCOUNT
        self.app_slug: str | None = "demo"
        self.tokens = 0
        self.feeds: list[asyncio.Queue[Change | Relist]] = []
        self.operations = self
        self._news = asyncio.Event()

    # What a test does

    def request(self, kind: str, *, member: str | None = "mem_1", seconds: float = 60, instance: str = "ins_1") -> str:
        id = f"op_{len(self.rows) + 1}"
        self.rows[id] = {
            "id": id,
            "instance_id": instance,
            "member_id": member,
            "kind": kind,
            "state": OperationState.PENDING,
            "attempt": 0,
            "deadline": clock.now() + timedelta(seconds=seconds),
            "steps": [],
            "token": None,
            "lease_until": 0.0,
            "error": None,
            "result": {},
        }
        self._changed(id, "requested")
        return id

    def preempt(self, id: str) -> None:
        self.rows[id].update(state=OperationState.CANCELLED, token=None)
        self._changed(id, "cancelled")

    def cancel(self, id: str) -> None:
        self.rows[id]["cancel_requested"] = True
        self._changed(id, "cancel_requested")

    def cut_feeds(self) -> None:
        """Lose the changes of the meantime, and let the readers know."""
        for feed in self.feeds:
            feed.put_nowait(Relist("gap"))

    def controller(self, handlers: dict[str, Handler], **options: Any) -> Controller:
        defaults: dict[str, Any] = {"machines": lambda client, claim: NoMachines(), "resync_seconds": 0.1}
        return Controller(cast(GpuaasClient, self), handlers, **(defaults | options))

    async def until(self, id: str, state: str, seconds: float = 60) -> Operation:
        async with asyncio.timeout(seconds):
            while self.rows[id]["state"] != state:
                self._news.clear()
                await self._news.wait()
        return self.model(id)

    def model(self, id: str) -> Operation:
        now = datetime.now(UTC)
        fixed: dict[str, Any] = {
            "project_id": "prj_1",
            "app_slug": "demo",
            "input": {},
            "requested_by": "usr_1",
            "correlation_id": f"cor_{id}",
            "revision": 1,
            "created_at": now,
            "updated_at": now,
        }
        return Operation.model_validate({**fixed, **self.rows[id]})

    def acknowledgement(self, id: str) -> WorkAcknowledged:
        row = self.model(id)
        lease = Lease(holder="demo", expires_at=row.updated_at + timedelta(seconds=LEASE_SECONDS))
        return WorkAcknowledged(
            id=id, revision=row.revision, state=row.state, cancel_requested=row.cancel_requested, lease=lease
        )

    # What the runtime calls

    async def principal(self) -> Principal:
        self._answer()
        now = datetime.now(UTC)
        return Principal.model_validate(
            {
                "kind": self.kind,
                "id": "sva_1",
                "name": "demo-controller",
                "project_id": "prj_1",
                "app_slug": self.app_slug,
                "token_expires_at": now,
            }
        )

    async def changes(self, *, stream: bool = False) -> AsyncIterator[Change | Relist]:
        queue: asyncio.Queue[Change | Relist] = asyncio.Queue()
        self.feeds.append(queue)
        yield Relist("start")
        while True:
            yield await queue.get()

    def list(self, *, project_id: str, claimable: bool) -> _All:
        assert (project_id, claimable) == ("prj_1", True)
        self._answer()
        self.lists += 1
        ours = {id: row for id, row in self.rows.items() if row["instance_id"] not in self.of_others}
        return _All([self.model(id) for id, row in ours.items() if self._is_claimable(row)])

    async def claim(self, id: str, holder: str) -> Claim:
        self._answer()
        row = self.rows[id]
        if row["instance_id"] in self.of_others:
            self.log.append(f"refused {id}")
            raise refusal(Code.NOT_OPERATOR)
        if not self._is_claimable(row):
            raise refusal(Code.LEASE_HELD)
        self.tokens += 1
        row.update(state=OperationState.RUNNING, token=self.tokens, attempt=row["attempt"] + 1)
        row["lease_until"] = _now() + LEASE_SECONDS
        self.log.append(f"claim {id} {holder}")
        self._changed(id, "claimed")
        claim = Claim(operation=self.model(id), fencing_token=self.tokens, lease_seconds=1)
        return claim.model_copy(update={"lease_seconds": LEASE_SECONDS})

    async def get(self, id: str) -> Operation:
        self._answer()
        return self.model(id)

    async def heartbeat(self, id: str, token: int) -> WorkAcknowledged:
        self._held(id, token)["lease_until"] = _now() + LEASE_SECONDS
        return self.acknowledgement(id)

    async def yield_lease(self, id: str, token: int, *, idempotency_key: str | None = None) -> Operation:
        self._held(id, token).update(state=OperationState.PENDING, token=None)
        self.log.append(f"yield {id}")
        self._changed(id, "yielded")
        return self.model(id)

    async def report_step(
        self,
        id: str,
        token: int,
        *,
        key: str,
        title: str,
        status: StepStatus,
        message: str,
        evidence: dict[str, Any],
        commands: Sequence[RemoteCommand] = (),
    ) -> WorkAcknowledged:
        row = self._held(id, token)
        now = datetime.now(UTC)
        step = Step(
            key=key,
            title=title,
            status=status,
            message=message,
            evidence=evidence,
            commands=[*commands],
            attempt=row["attempt"],
            started_at=now,
        )
        row["steps"] = [s for s in row["steps"] if (s.key, s.attempt) != (key, step.attempt)] + [step]
        self.log.append(f"step {id} {key} {status.value}" + (f": {message}" if message else ""))
        self._changed(id, f"step_{status.value}")
        return self.acknowledgement(id)

    async def complete(
        self,
        id: str,
        token: int,
        *,
        result: dict[str, Any] | None = None,
        member_statuses: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Operation:
        self._held(id, token).update(state=OperationState.SUCCEEDED, result=result or {}, token=None)
        self.log.append(f"complete {id}")
        self._changed(id, "succeeded")
        return self.model(id)

    async def fail(
        self,
        id: str,
        token: int,
        error: OperationError,
        *,
        result: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Operation:
        self._held(id, token).update(state=OperationState.FAILED, error=error, result=result or {}, token=None)
        self.log.append(f"fail {id} {error.code}")
        self._changed(id, "failed")
        return self.model(id)

    async def end_cancelled(self, id: str, token: int, *, idempotency_key: str | None = None) -> Operation:
        self._held(id, token).update(state=OperationState.CANCELLED, token=None)
        self.log.append(f"cancelled {id}")
        self._changed(id, "cancelled")
        return self.model(id)

    # Inside

    def _answer(self) -> None:
        if self.away:
            self.turned_away += 1
            raise TransportError("cannot reach http://platform.test: refused")
        if self.refuses is not None:
            raise refusal(self.refuses)

    def _is_claimable(self, row: dict[str, Any]) -> bool:
        if row["state"] == OperationState.RUNNING:
            return bool(row["lease_until"] < _now())
        return bool(row["state"] == OperationState.PENDING)

    def _held(self, id: str, token: int) -> dict[str, Any]:
        self._answer()
        row = self.rows[id]
        if row["token"] != token or row["lease_until"] < _now():
            raise refusal(Code.STALE_LEASE)
        return row

    def _changed(self, id: str, event: str) -> None:
        self.tell("operation", id, event, self.rows[id]["instance_id"], self.app_slug)

    def tell(self, noun: str, id: str, event: str, instance: str, app_slug: str | None) -> None:
        change = Change(
            noun=noun,
            resource_id=id,
            event=event,
            revision=1,
            instance_id=instance,
            app_slug=app_slug,
            correlation_id=f"cor_{id}",
            at=datetime.now(UTC),
        )
        self._news.set()
        for feed in self.feeds:
            feed.put_nowait(change)


class NoMachines:
    async def prepare(self) -> None:
        pass

    def machine(self, allocation_id: str) -> Machine:
        raise MachineUnreachableError(f"{allocation_id} does not answer")

    async def close(self) -> None:
        pass
