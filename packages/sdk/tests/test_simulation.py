"""The runtime for hours of virtual time under random faults: a thousand seeds, each of which replays.

`GPUAAS_SIMULATION_SEED=123 pytest packages/sdk/tests/test_simulation.py` runs one seed again, with its log.
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpuaas_contract.changes import Change
from gpuaas_sdk import OperationContext, OperationFailed, Relist, RetryLater, clock
from gpuaas_sdk.errors import TransportError
from gpuaas_sdk.runtime.controller import Controller
from gpuaas_sdk.testing import VirtualTimeLoop

from .sdk_test_platform import MemoryPlatform, NoMachines

SEEDS = int(os.environ.get("GPUAAS_SIMULATION_SEEDS", "1000"))
CHUNK = 50
FAULTY_SECONDS = 25.0
QUIET_SECONDS = 400.0
MUTATIONS = {"claim", "heartbeat", "yield_lease", "report_step", "complete", "fail"}


@dataclass
class World:
    """Records what the simulated machines saw, and who was allowed to touch them."""

    platform: "FaultyPlatform"
    broken_rules: list[str] = field(default_factory=list)
    at_work: dict[tuple[str, str], str] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)

    def rule(self, holds: bool, rule: str) -> None:
        if not holds:
            self.broken_rules.append(f"{asyncio.get_running_loop().time():.2f}: {rule}")

    def effect(self, holder: str, context: OperationContext, step: str) -> None:
        """A change of a machine. The runtime's promises: announced before, and under a lease that is not over."""
        row = self.platform.rows[context.operation_id]
        mine = row["token"] == context.fencing_token
        now = asyncio.get_running_loop().time()
        self.rule(not mine or now <= row["lease_until"], f"{holder} acts on {row['id']} after its lease ran out")
        later = [token for token in self.platform.claims[row["id"]] if token > context.fencing_token]
        self.rule(not later, f"{holder} acts on {row['id']} although {later} were claimed after it")
        self.rule(clock.now() <= row["deadline"], f"{holder} acts on {row['id']} after its deadline")
        announced = f"step {row['id']} {step} running" in self.platform.log
        self.rule(announced, f"{holder} acts on {row['id']} before it announced {step}")


class FaultyPlatform(MemoryPlatform):
    """One truth for all controllers. Each has its own, faulty way to it: `seen_by`."""

    def __init__(self, random: random.Random) -> None:
        super().__init__()
        self.random = random
        self.faulty = True
        self.was_away = False
        self.claims: dict[str, list[int]] = {}
        self.answers: dict[str, Any] = {}

    def request(self, kind: str, **more: Any) -> str:
        operation_id = super().request(kind, **more)
        self.claims[operation_id] = []
        return operation_id

    def seen_by(self, holder: str) -> "Connection":
        return Connection(self, holder)


class Connection:
    """A controller's view: answers come late or never, requests get lost, the feed repeats, reorders and gaps."""

    def __init__(self, platform: FaultyPlatform, holder: str) -> None:
        self.platform = platform
        self.holder = holder
        self.dead = False
        self.cut_until = 0.0
        self.operations = self

    def __getattr__(self, name: str) -> Any:
        if name not in MUTATIONS:
            raise AttributeError(name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._call(name, *args, **kwargs)

        return call

    async def travel(self) -> None:
        """The way to the platform or back: quick, slow, or a cut that lasts a while."""
        loop = asyncio.get_running_loop()
        if self.platform.faulty:
            await asyncio.sleep(self.platform.random.choice([0.0, 0.001, 0.01, 0.05]))
            if self.platform.random.random() < 0.02:
                self.cut_until = loop.time() + self.platform.random.uniform(0.1, 2.0)
        if self.dead:
            await asyncio.Event().wait()
        if loop.time() < self.cut_until:
            await asyncio.sleep(self.platform.random.uniform(0.0, self.cut_until - loop.time()))
            raise TransportError("the connection was cut")

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        await self.travel()
        # As the platform does: the same key again gives the first answer again, whatever happened since.
        key = kwargs.get("idempotency_key")
        if key is None or key not in self.platform.answers:
            answer = await getattr(self.platform, name)(*args, **kwargs)
            if name == "claim":
                self.platform.claims[args[0]].append(answer.fencing_token)
            if key is not None:
                self.platform.answers[key] = answer
        else:
            answer = self.platform.answers[key]
        await self.travel()
        return answer

    async def principal(self) -> Any:
        await self.travel()
        return await self.platform.principal()

    def list(self, **query: Any) -> Any:
        connection = self

        class Later:
            async def all(self) -> Any:
                await connection.travel()
                return await connection.platform.list(**query).all()

        return Later()

    async def changes(self, *, stream: bool = False) -> AsyncIterator[Change | Relist]:
        draw = self.platform.random
        held: Change | Relist | None = None
        async for item in self.platform.changes():
            if self.dead:
                await asyncio.Event().wait()
            fate = draw.random() if self.platform.faulty else 1.0
            if fate < 0.1:
                continue
            if fate < 0.2 and held is None:
                held = item
                continue
            yield item
            if fate < 0.3:
                yield item
            if held is not None:
                yield held
                held = None
            if fate < 0.35:
                yield Relist("cursor too old")


@dataclass
class Process:
    """A controller process: it can be killed, which hands nothing back."""

    controller: Controller
    connection: Connection
    task: "asyncio.Task[None]"

    async def kill(self) -> None:
        self.connection.dead = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.platform = FaultyPlatform(self.random)
        self.world = World(self.platform)
        self.processes: list[Process] = []
        self.started = 0

    def start_process(self) -> None:
        self.started += 1
        holder = f"controller-{self.started}"
        connection = self.platform.seen_by(holder)
        handlers = {kind: self._handler(holder) for kind in ("deploy", "add", "drain", "remove", "decommission")}
        controller = Controller(
            connection,  # type: ignore[arg-type]
            handlers,
            holder=holder,
            machines=lambda client, claim: NoMachines(),
            resync_seconds=1.0,
        )
        task = asyncio.create_task(controller.run(), name=holder)
        self.processes.append(Process(controller, connection, task))

    def _handler(self, holder: str) -> Any:
        async def handle(context: OperationContext) -> dict[str, Any]:
            operation = context.operation
            key = (holder, str(operation.member_id or operation.instance_id))
            self.world.rule(key not in self.world.at_work, f"{holder} works twice at once on {key[1]}")
            self.world.at_work[key] = operation.id
            try:
                for number in range(self.random.randint(1, 3)):
                    async with context.step(f"step-{number}", "Do it"):
                        await asyncio.sleep(self.random.choice([0.0, 0.02, 0.1, 0.5]))
                        self.world.effect(holder, context, f"step-{number}")
                        await asyncio.sleep(self.random.choice([0.0, 0.02, 0.1]))
                        self._maybe_raise()
                return {"by": holder}
            finally:
                del self.world.at_work[key]

        return handle

    def _maybe_raise(self) -> None:
        if not self.platform.faulty:
            return
        fate = self.random.random()
        if fate < 0.05:
            raise RetryLater(None, "not yet")
        if fate < 0.08:
            raise OperationFailed("machine_said_no", "the machine said no", retryable=True)
        if fate < 0.10:
            raise ZeroDivisionError("a bug")

    async def run(self) -> None:
        self.start_process()
        self.start_process()
        await self._faults()
        self.platform.faulty = False
        for connection in (process.connection for process in self.processes):
            connection.cut_until = 0.0
        await self._converge()
        for process in self.processes:
            process.controller.stop()
        await asyncio.gather(*(process.task for process in self.processes))

    async def _faults(self) -> None:
        loop = asyncio.get_running_loop()
        draw = self.random
        members = [f"mem_{number}" for number in range(4)]
        while loop.time() < FAULTY_SECONDS:
            await asyncio.sleep(draw.choice([0.0, 0.1, 1.0, 3.0]))
            match draw.choice(["request", "request", "request", "preempt", "kill", "stop", "away"]):
                case "request":
                    kind = draw.choice(["add", "drain", "remove"])
                    self.platform.request(kind, member=draw.choice(members), seconds=draw.choice([2, 20, 86_400]))
                case "preempt":
                    unfinished = [i for i, row in self.platform.rows.items() if row["state"] in ("pending", "running")]
                    for operation_id in unfinished:
                        self.platform.preempt(operation_id)
                    self.platform.request("decommission", member=None, seconds=86_400)
                case "kill":
                    await self._replace(draw.randrange(len(self.processes)), kill=True)
                case "stop":
                    await self._replace(draw.randrange(len(self.processes)), kill=False)
                case "away":
                    self.platform.away = self.platform.was_away = True
                    await asyncio.sleep(draw.uniform(0.0, 2.0))
                    self.platform.away = False

    async def _replace(self, index: int, *, kill: bool) -> None:
        process = self.processes.pop(index)
        if kill:
            await process.kill()
        else:
            process.controller.stop()
            await process.task
            held = [r["id"] for r in self.platform.rows.values() if self._holds(r, process.connection)]
            if process.connection.cut_until == 0.0 and not self.platform.was_away:
                self.world.rule(not held, f"{process.connection.holder} stopped and kept {held}")
        self.start_process()

    def _holds(self, row: dict[str, Any], connection: Connection) -> bool:
        claimed = [line for line in self.platform.log if line.startswith(f"claim {row['id']} ")]
        live = row["state"] == "running" and row["lease_until"] > asyncio.get_running_loop().time()
        return bool(live and claimed and claimed[-1].endswith(f" {connection.holder}"))

    async def _converge(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + QUIET_SECONDS
        while unfinished := [i for i, r in self.platform.rows.items() if r["state"] in ("pending", "running")]:
            if loop.time() > deadline:
                self.world.rule(False, f"{unfinished} never ended although all faults are over")
                return
            await asyncio.sleep(0.5)


def simulate(seed: int) -> Simulation:
    random.seed(seed)  # The back-off's jitter.
    simulation = Simulation(seed)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(simulation.run())
    return simulation


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    if "GPUAAS_SIMULATION_SEED" not in os.environ:
        caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_a_rule(first: int) -> None:
    one = os.environ.get("GPUAAS_SIMULATION_SEED")
    ends: set[str] = set()
    for seed in [int(one)] if one else range(first, first + CHUNK):
        simulation = simulate(seed)
        assert simulation.world.broken_rules == [], f"replay with GPUAAS_SIMULATION_SEED={seed}"
        ends |= {row["state"] for row in simulation.platform.rows.values()}
    assert one or ends == {"succeeded", "failed", "cancelled"}, "the faults must not leave a way to end untried"


def test_a_seed_replays() -> None:
    assert simulate(7).platform.log == simulate(7).platform.log
