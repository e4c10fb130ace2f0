"""Operations, leases, pre-emption, queues and bulk policies under random requests, on the services and real PostgreSQL.

At every step a request is made, and it is accepted exactly where the lists of allowed actions say so. After every step
the database is looked at as a whole."""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gpuaas_contract.bulk import AtLeast, BulkPolicy, BulkState, Policy
from gpuaas_contract.instances import Instance, InstanceStatus, Member, MemberStatus
from gpuaas_contract.operations import Claim, Operation, OperationState
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.operations.service import bulks
from gpuaas_stack.postgres import DATABASE
from gpuaas_stack.settings import Settings
from tests.support.chance import SEED
from tests.support.lifecycle import INSTANCE_KINDS, MEMBER_KINDS
from tests.support.processes import fresh_database
from tests.support.service_world import ServiceWorld

STEPS = int(os.environ.get("GPUAAS_STATES_STEPS") or ("10000" if os.environ.get("GPUAAS_SOAK") else "1000"))
STEPS_OF_A_ROUND = min(STEPS, 2_500)
"""Repeat one round with its seed, which is printed, and GPUAAS_STATES_STEPS with the steps of a round."""

pick = st.integers(0, 10_000)
policies = st.sampled_from([Policy.ALL_OR_NOTHING, Policy.BEST_EFFORT, AtLeast(at_least=1), AtLeast(at_least=2)])
_EXPECTED = {
    Code.INVALID_REQUEST,
    Code.INVALID_STATE,
    Code.ACTION_NOT_ALLOWED,
    Code.OPERATION_RUNNING,
    Code.COMPONENT_LIMIT,
}


class Lives(RuleBasedStateMachine):
    world: ClassVar[ServiceWorld]
    runner: ClassVar[asyncio.Runner]
    steps: ClassVar[int] = 0

    @initialize(count=st.integers(0, 3))
    def begin(self, count: int) -> None:
        self.machines = self.run(self.world.allocations(7))
        self.generation = 0
        self.held: list[tuple[str, int, int]] = []
        """Every lease that was ever given: operation, token, controller."""
        self.bulk_ids: list[str] = []
        self.name = f"i{Lives.steps}"
        self.instance_id = self.run(self.world.deploy(*self.machines[: count + 1], name=self.name)).id

        self.look()

    def run(self, effect: Awaitable[Any]) -> Any:
        return self.runner.run(_awaited(effect))

    # What is there: as it was found after the last step

    def look(self) -> None:
        self.instance: Instance = self.run(self.world.instance(self.instance_id))
        self.members: list[Member] = self.run(self.world.members(self.instance_id))
        self.operations: list[Operation] = self.run(self.world.operations(self.instance_id))

    def operation(self, id: str) -> Operation | None:
        """As it is now."""
        self.operations = self.run(self.world.operations(self.instance_id))
        return next((operation for operation in self.operations if operation.id == id), None)

    def one(self, items: list[Any], number: int) -> Any:
        return items[number % len(items)] if items else None

    def ask(self, effect: Any, *, allowed: bool, what: str) -> Any | None:
        """Accepted exactly where it is said to be allowed; refused with one of the known reasons."""
        answer, refusal = self.tried(effect)
        if refusal is None:
            assert allowed, f"{what} is not said to be allowed, and was accepted"
            return answer
        assert not allowed, f"{what} is said to be allowed, and was refused: {refusal.code}: {refusal.detail}"
        assert refusal.code in _EXPECTED, f"{what}: {refusal.code}: {refusal.detail}"
        if refusal.code == Code.OPERATION_RUNNING:
            named = next(op for op in self.operations if op.id == refusal.context["operation_id"])
            assert not named.state.is_final
        return None

    def tried(self, effect: Any) -> tuple[Any, Refusal | None]:
        try:
            return self.run(self.world.act(effect)), None
        except Refusal as refusal:
            return None, refusal

    # What people ask for

    @rule(kind=st.sampled_from(INSTANCE_KINDS), queue=st.booleans(), other=st.booleans())
    def request_on_instance(self, kind: str, queue: bool, other: bool) -> None:
        inputs: dict[str, dict[str, Any]] = {
            "upgrade": {"version": "1.2.0"},
            "configure": {"inputs": {"greeting": "hi" if other else "ho"}},
        }
        instance = self.instance
        effect = self.world.requesting(self.instance_id, kind, queue=queue, **inputs.get(kind, {}))
        allowed = kind in {action.action for action in instance.allowed_actions}
        if kind == "upgrade" and instance.versions.app == "1.2.0":
            allowed = False
        if queue and not allowed:
            self._queue(effect)
        else:
            self.ask(effect, allowed=allowed, what=f"{kind} on the instance")

    @rule(kind=st.sampled_from(MEMBER_KINDS), number=pick, queue=st.booleans())
    def request_on_member(self, kind: str, number: int, queue: bool) -> None:
        member = self.one(self.members, number)
        allowed = kind in {action.action for action in member.allowed_actions}
        effect = self.world.requesting(self.instance_id, kind, member.id, queue=queue)
        if queue:
            self._queue(effect)
        else:
            self.ask(effect, allowed=allowed, what=f"{kind} on {member.component_key} that is {member.status}")

    @rule(number=pick, machine=pick)
    def replace(self, number: int, machine: int) -> None:
        members = self.members
        member = self.one(members, number)
        used = {m.allocation_id for m in members if m.status != MemberStatus.REMOVED}
        free = self.one([id for id in self.machines if id not in used], machine)
        if free is None:
            return
        allowed = "replace" in {action.action for action in member.allowed_actions}
        effect = self.world.requesting(self.instance_id, "replace", member.id, allocation_id=free)
        self.ask(effect, allowed=allowed, what=f"replace of one that is {member.status}")

    def _queue(self, effect: Any) -> None:
        """A queued operation is judged on its turn; the invariant checks that it is not lost."""
        _, refusal = self.tried(effect)
        assert refusal is None or refusal.code in _EXPECTED, f"{refusal.code}: {refusal.detail}"

    @rule(number=pick, count=st.integers(1, 3), policy=policies)
    def add_many(self, number: int, count: int, policy: BulkPolicy) -> None:
        wanted = [self.machines[(number + i) % len(self.machines)] for i in range(count)]
        self._bulk(self.world.adding(self.instance_id, wanted, policy), policy, count)

    @rule(
        kind=st.sampled_from(MEMBER_KINDS), number=pick, count=st.integers(1, 3), policy=policies, queue=st.booleans()
    )
    def request_many(self, kind: str, number: int, count: int, policy: BulkPolicy, queue: bool) -> None:
        members = self.members
        wanted = list(dict.fromkeys(members[(number + i) % len(members)].id for i in range(count)))
        effect = self.world.requesting_many(self.instance_id, kind, wanted, policy, queue=queue)
        self._bulk(effect, policy, len(wanted))

    def _bulk(self, effect: Any, policy: BulkPolicy, count: int) -> None:
        needed = policy.at_least if isinstance(policy, AtLeast) else {"all_or_nothing": count}.get(policy, 1)
        before = len(self.operations)
        bulk, refusal = self.tried(effect)
        if refusal is not None:
            assert refusal.code in _EXPECTED | {Code.POLICY_NOT_MET}, f"{refusal.code}: {refusal.detail}"
            assert len(self.run(self.world.operations(self.instance_id))) == before
            return
        accepted = sum(result.operation_id is not None for result in bulk.results)
        assert accepted >= needed
        assert len(self.run(self.world.operations(self.instance_id))) == before + accepted
        self.bulk_ids.append(bulk.id)

    @rule(number=pick)
    def retry(self, number: int) -> None:
        operation = self.one(self.operations, number)
        allowed = "retry" in {action.action for action in operation.allowed_actions}
        self.ask(self.world.retrying(operation.id), allowed=allowed, what=f"retry of a {operation.state} one")

    @rule(number=pick, newest=st.booleans())
    def cancel(self, number: int, newest: bool) -> None:
        operations = self.operations
        operation = self.one(operations[-3:] if newest else operations, number)
        allowed = "cancel" in {action.action for action in operation.allowed_actions}
        self.ask(self.world.cancelling(operation.id), allowed=allowed, what=f"cancel of a {operation.state} one")

    @rule(number=pick)
    def forget(self, number: int) -> None:
        member = self.one(self.members, number)
        allowed = "forget" in {action.action for action in member.allowed_actions}
        self.ask(self.world.forgetting(member.id), allowed=allowed, what="forget")

    @rule(chance=st.integers(0, 7))
    def go(self, chance: int) -> None:
        """The end comes now and then, and after it a new instance."""
        instance = self.instance
        actions = {action.action for action in instance.allowed_actions}
        if chance == 0:
            self.ask(
                self.world.requesting(self.instance_id, "decommission"),
                allowed="decommission" in actions,
                what="decommission",
            )
        elif chance == 1:
            self.ask(self.world.abandoning(self.instance_id), allowed="abandon" in actions, what="abandon")
        elif instance.status == InstanceStatus.DECOMMISSIONED:
            self.generation = 0
            self.bulk_ids = []
            deployed = self.world.deploy(self.machines[0], self.machines[1], name=self.name)
            self.instance_id = self.run(deployed).id

    # What controllers do

    @rule(number=pick, controller=st.integers(0, 1))
    def claim(self, number: int, controller: int) -> None:
        operation = self.one([op for op in self.operations if not op.state.is_final], number)
        if operation is None:
            return
        free = operation.lease is None or operation.lease.expired
        try:
            claim = self.run(self.world.claim(operation.id, controller))
        except Refusal:
            assert operation.queued or operation.cancel_requested or not free
            return
        assert free
        assert not operation.queued
        assert all(claim.fencing_token > token for _, token, _ in self.held), "a token did not grow"
        self.held.append((operation.id, claim.fencing_token, controller))

    @rule(number=pick, how=st.sampled_from(["finish", "finish", "finish", "fail", "cancelled", "beat", "step"]))
    def work(self, number: int, how: str) -> None:
        """Under any lease that was ever given: only the newest one that has not run out writes."""
        held = self.one(self.held[-6:], number)
        if held is None:
            return
        operation_id, token, controller = held
        before = next((op for op in self.operations if op.id == operation_id), None)
        if before is None:
            return
        newest = [t for id, t, _ in self.held if id == operation_id][-1] == token
        live = newest and before.state == OperationState.RUNNING and before.lease and not before.lease.expired
        try:
            self._write(how, before, token, controller)
        except Refusal as refusal:
            if refusal.code == Code.STALE_LEASE:
                assert not live
                after = self.operation(operation_id)
                assert after is not None
                assert after.revision == before.revision, "a stale token has written"
            else:
                assert live
                assert how == "cancelled"
                assert not before.cancel_requested
            return
        assert live, "a lease that is over was let through"

    def _write(self, how: str, operation: Operation, token: int, controller: int) -> None:
        world = self.world
        match how:
            case "finish":
                if operation.state == OperationState.RUNNING and operation.lease and not operation.lease.expired:
                    self.run(world.heartbeat(operation.id, token, controller))
                claim = Claim(operation=operation, fencing_token=token, lease_seconds=15)
                self.run(world.finish(claim, controller))
            case "fail":
                self.run(world.fail(operation.id, token, controller, retryable=token % 3 > 0))
            case "cancelled":
                self.run(world.end_cancelled(operation.id, token, controller))
            case "beat":
                self.run(world.heartbeat(operation.id, token, controller))
            case "step":
                self.run(world.step(operation.id, token, controller))

    # What time does

    @rule(number=pick)
    def a_lease_runs_out(self, number: int) -> None:
        operation = self.one([op for op in self.operations if op.state == OperationState.RUNNING], number)
        if operation is not None:
            self.run(self.world.expire_lease(operation.id))
            self.run(self.world.sweep())

    @rule(number=pick, chance=st.integers(0, 3))
    def a_deadline_passes(self, number: int, chance: int) -> None:
        operation = self.one([op for op in self.operations if not op.state.is_final], number)
        if operation is None or chance:
            return
        self.run(self.world.expire_deadline(operation.id))
        self.run(self.world.sweep())
        after = self.operation(operation.id)
        assert after is not None
        assert after.state == (OperationState.PENDING if operation.queued else OperationState.FAILED)

    # What must be true of all of it

    @invariant()
    def the_whole_is_sound(self) -> None:
        Lives.steps += 1
        self.look()
        instance, members, operations = self.instance, self.members, self.operations
        live = [member for member in members if member.status != MemberStatus.REMOVED]
        open_operations = [op for op in operations if not op.state.is_final]
        self._check_exclusion(open_operations)
        tails = [member for member in live if member.component_key == "tail"]
        assert len({member.allocation_id for member in tails}) == len(tails), "a machine is used twice"
        being_replaced = {member.replaces_member_id for member in live}
        assert len([tail for tail in tails if tail.id not in being_replaced]) <= 3
        assert instance.generation >= self.generation
        self.generation = instance.generation
        if instance.status == InstanceStatus.DECOMMISSIONED:
            assert not live
            assert not open_operations
            assert instance.allowed_actions == []
        elif instance.desired_state != "decommissioned":
            wanted = [(placement.component_key, placement.allocation_id) for placement in instance.placement_intent]
            assert sorted(wanted) == sorted((member.component_key, member.allocation_id) for member in live)
        for bulk_id in self.bulk_ids[-3:]:
            self._check_bulk(bulk_id)

    @staticmethod
    def _check_exclusion(open_operations: list[Operation]) -> None:
        busy: dict[str, str] = {}
        for operation in open_operations:
            if operation.queued:
                assert operation.waits_for, f"{operation.id} waits for nothing, for ever"
                assert operation.state == OperationState.PENDING
                continue
            for target in filter(None, {operation.member_id or "all", operation.replacement_member_id}):
                assert target not in busy, f"{operation.id} and {busy[target]} work on {target} at once"
                busy[target] = operation.id
        assert "all" not in busy or len(busy) == 1, f"an operation on all beside others: {busy}"

    def _check_bulk(self, bulk_id: str) -> None:
        bulk = self.run(self.world.act(lambda tx: bulks.get_bulk(tx, self.world.admin, bulk_id)))
        states = [result.state for result in bulk.results if result.state is not None]
        unfinished = [state for state in states if not state.is_final]
        succeeded = states.count(OperationState.SUCCEEDED)
        needed = (
            bulk.policy.at_least
            if isinstance(bulk.policy, AtLeast)
            else {"all_or_nothing": len(bulk.results)}.get(bulk.policy, 1)
        )
        assert (bulk.ended_at is None) == bool(unfinished)
        assert (bulk.state == BulkState.RUNNING) == bool(unfinished)
        if not unfinished:
            assert (bulk.state == BulkState.SUCCEEDED) == (succeeded >= needed)


@pytest.fixture
def lives(servers: Settings) -> Iterator[type[Lives]]:
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(servers, DATABASE))
        Lives.runner = stack.enter_context(asyncio.Runner())
        opened = ServiceWorld.opened(url)
        Lives.world = Lives.runner.run(_awaited(opened.__aenter__()))
        stack.callback(lambda: Lives.runner.run(_awaited(opened.__aexit__(None, None, None))))
        Lives.steps = 0
        yield Lives


async def _awaited(coroutine: Awaitable[Any]) -> Any:
    return await coroutine


@pytest.mark.timeout(1_800)
def test_random_lives_are_sound(lives: type[Lives]) -> None:
    """In rounds whose seeds are printed: one round in `make test`, more of them in `make soak`."""
    for number in itertools.count(SEED):
        print(f"round from step {lives.steps}: GPUAAS_SEED={number}")
        length = 100
        options = settings(
            max_examples=STEPS_OF_A_ROUND // length,
            stateful_step_count=length,
            deadline=None,
            database=None,
            print_blob=True,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(seed(number)(lives), settings=options)
        if lives.steps >= STEPS:
            break
    print(f"{lives.steps} steps")
