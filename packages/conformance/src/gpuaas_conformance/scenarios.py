"""The runs of the app, each with faults of its own. A run says what it looks at (`at`), so that one that gets stuck is
the fault of that check."""

import asyncio
import random
import re
import signal
from dataclasses import dataclass, field

from gpuaas_conformance import looking, others
from gpuaas_conformance.boundaries import Boundaries, Boundary, Moment
from gpuaas_conformance.proxy import Exchange, Fault, LoseAnswer, LoseRequest, Refuse
from gpuaas_conformance.rules import Findings
from gpuaas_conformance.subject import Subject, TookTooLongError, until
from gpuaas_contract.instances import Instance, InstanceStatus, MemberStatus
from gpuaas_contract.operations import PREFLIGHT_STEP, Operation, OperationState, StepStatus
from gpuaas_contract.problems import Code

HOLD_SECONDS = 11.0
"""Longer than a controller may be silent, shorter than a lease."""
UNREACHABLE_SECONDS = 12.0
WEATHER_SECONDS = 300.0
BUG = "controller_bug"
"""The runtime's code for an exception that no handler expected."""
_SHOWN = "sudo sh -c 'journalctl --no-pager -o cat; ps -e -o args; cat /proc/[0-9]*/environ 2>/dev/null'"


@dataclass
class Kit:
    subject: Subject
    findings: Findings
    random: random.Random
    at: str = ""
    before: list[set[str]] = field(default_factory=list)
    """The state of the machines without the app."""
    running: list[set[str]] = field(default_factory=list)
    """And with it."""

    began: list[int] = field(default_factory=list)
    """When that was looked at, by the clock of each machine."""

    async def begin(self) -> None:
        self.before = await self.snapshots()
        self.began = [await self.subject.person.time_there(machine.id) for machine in self.subject.machines]

    async def snapshots(self) -> list[set[str]]:
        person = self.subject.person
        return [await person.what_is_there(machine.id) for machine in self.subject.machines]

    async def until_running(self, instance: Instance, seconds: float = 180.0) -> Instance:
        found = await self.subject.until_settled(instance, seconds)
        words = f"{instance.name} is {found.status}: {found.reason}"
        self.findings.look(self.at, found.status == InstanceStatus.RUNNING, words)
        if found.status != InstanceStatus.RUNNING:
            raise TookTooLongError(words)
        return found

    async def take_apart(self, instance: Instance, operation: Operation | None = None) -> None:
        """And see for ourselves that nothing is left."""
        asked = operation or await self.subject.admin.instances.request(instance.id, "decommission")
        ended = await self.subject.until_ended(asked)
        error = ended.error.detail if ended.error else ended.state
        self.findings.look(self.at, ended.state == OperationState.SUCCEEDED, f"the decommission ended badly: {error}")
        self.look_at_failures([ended])
        receipt = ended.result.get("receipt", {})
        proven = receipt.get("ok") is True and receipt.get("members")
        self.findings.look("teardown", bool(proven), "the result of the decommission is no receipt that says ok")
        for machine, before, after in zip(self.subject.machines, self.before, await self.snapshots(), strict=True):
            left, gone = sorted(after - before), sorted(before - after)
            words = f"on {machine.name} is left: {', '.join(left[:5])}" if left else f"gone: {', '.join(gone[:5])}"
            self.findings.look("teardown", not left and not gone, words)

    def look_at_failures(self, operations: list[Operation]) -> None:
        for operation in operations:
            if operation.error is not None:
                code, detail = operation.error.code, operation.error.detail
                good = re.fullmatch(r"[a-z][a-z0-9_]{2,}", code) and len(detail) > 10 and code != BUG
                words = f"{operation.kind} failed with {operation.error.code!r}: {operation.error.detail!r}"
                self.findings.look("fails-in-words", bool(good), words)


async def plain(kit: Kit) -> None:
    """Nothing goes wrong."""
    subject, findings = kit.subject, kit.findings
    kit.at = "own-account"
    subject.start()
    first = len(subject.proxy.exchanges)
    instance = await kit.until_running(await subject.deploy())
    exchanges = subject.proxy.exchanges[first:]
    kit.running = await kit.snapshots()
    looking.look_at_steps(exchanges, findings)
    for operation in await subject.operations(instance):
        unended = [step.key for step in operation.steps if step.status == StepStatus.RUNNING]
        findings.look("announced", bool(operation.steps) and not unended, f"{operation.kind}: {unended or 'no steps'}")
    members = await subject.members(instance)
    for member in members:
        done = member.status == MemberStatus.READY
        findings.look("members-reported", done, f"{member.component_key} is {member.status} in a running instance")
    looking.look_at_readiness(exchanges, {member.id for member in members}, findings)
    await _look_at_fences(kit, instance)
    await _rotate(kit, instance)
    await _look_for_secrets(kit)
    looking.look_at_details(subject.proxy.exchanges[first:], findings)
    kit.at = "teardown"
    await kit.take_apart(instance)
    await subject.end()


async def _look_at_fences(kit: Kit, instance: Instance) -> None:
    operations = {operation.id for operation in await kit.subject.operations(instance)}
    tokens = {
        str(token)
        for operation, claimed in looking.claims(kit.subject.proxy.exchanges).items()
        if operation in operations
        for _, token in claimed
    }
    for machine in kit.subject.machines[: len({p.allocation_id for p in kit.subject.placement()})]:
        seen = await kit.subject.person.run(machine.id, f"sudo sh -c 'cat /var/lib/gpuaas/fence/{instance.id}*'")
        held = bool(tokens & set(seen.split()))
        kit.findings.look("fenced", held, f"no token of a claim of {instance.name} was seen on {machine.name}")
    person, quiet = kit.subject.person, kit.subject.app.is_quiet
    for machine, since, before, after in zip(kit.subject.machines, kit.began, kit.before, kit.running, strict=True):
        changed = await person.changed_files(machine.id, since)
        outside = looking.outside_the_fence(await person.journal(machine.id, since), changed, after - before)
        outside = [path for path in outside if quiet(path)]
        words = f"{machine.name} was changed outside of the fence: {', '.join(outside[:5])}"
        kit.findings.look("fenced", not outside, words)


async def _rotate(kit: Kit, instance: Instance) -> None:
    """Where the app has a secret, and a kind of operation that brings it out."""
    subject = kit.subject
    secrets = await subject.admin.secrets.list(instance.id).all()
    kinds = [kind for kind in ("restart", "configure") if subject.app.manifest.instance_operation(kind)]
    if not secrets or not kinds:
        return
    kit.at = "secret-rotated"
    rotated = await subject.admin.secrets.rotate(secrets[0].id)
    newest = max(version.version for version in rotated.versions)
    first = len(subject.proxy.exchanges)
    input = {} if kinds[0] == "restart" else {"inputs": instance.inputs}
    ended = await subject.until_ended(await subject.admin.instances.request(instance.id, kinds[0], input=input))
    kit.look_at_failures([ended])
    delivered = [
        exchange.answer_json.get("version")
        for exchange in subject.proxy.exchanges[first:]
        if exchange.path.endswith("/deliveries") and "/secrets/" in exchange.path and exchange.accepted
    ]
    words = f"after a rotation to version {newest}, {kinds[0]} {ended.state} and was given {delivered}"
    kit.findings.look("secret-rotated", ended.state == OperationState.SUCCEEDED and newest in delivered, words)


async def _look_for_secrets(kit: Kit) -> None:
    subject = kit.subject
    values = looking.secret_values(subject.proxy.exchanges)
    if not values:
        return
    places = {"its log": subject.log.read_text(errors="replace")}
    for exchange in subject.proxy.exchanges:
        places[f"{exchange.method} {exchange.path}"] = exchange.body
    for machine in subject.machines:
        places[f"journal, arguments or environment on {machine.name}"] = await subject.person.run(machine.id, _SHOWN)
    looking.look_for_secrets(values, places, kit.findings)
    contents = looking.secret_contents(subject.proxy.exchanges)
    for machine, since in zip(subject.machines, kit.began, strict=True):
        readable = sorted(await subject.person.readable_by_all(machine.id, values, contents, since))
        words = f"every user of {machine.name} can read a secret in {', '.join(readable[:5])}"
        kit.findings.look("secret-on-machine", not readable, words)


async def killed(kit: Kit) -> None:
    """kill -9 after a side effect, before its report; then a decommission while no machine answers."""
    subject, proxy = kit.subject, kit.subject.proxy
    kit.at = "killed-after-effect"
    steps = kit.random.randint(2, 5)

    def strikes(boundary: Boundary) -> bool:
        nonlocal steps
        steps -= boundary.moment == Moment.DONE
        return steps == 0 and not boundaries.struck

    def kill(boundary: Boundary) -> None:
        for process in subject.processes:
            process.kill()

    proxy.weather = boundaries = Boundaries(proxy, kill, strikes)
    subject.start()
    instance = await subject.deploy()

    async def is_dead() -> bool | None:
        return bool(boundaries.struck) or None

    await until(is_dead, "the controller reports a step")
    await subject.end(signal.SIGKILL)
    proxy.weather = None
    subject.start()
    await kit.until_running(instance)
    if kit.running:
        for machine, plain_one, after in zip(subject.machines, kit.running, await kit.snapshots(), strict=True):
            differs = subject.app.differences(plain_one, after)
            words = f"{machine.name} differs from a deploy without a kill: {', '.join(differs[:5])}"
            kit.findings.look(kit.at, not differs, words)
    await _unreachable(kit, instance)
    await subject.end()


async def _unreachable(kit: Kit, instance: Instance) -> None:
    subject, proxy = kit.subject, kit.subject.proxy
    kit.at = "unknown-is-not-no"
    proxy.streams_cut = True
    proxy.cut_streams()
    asked = await subject.admin.instances.request(instance.id, "decommission")
    loop = asyncio.get_running_loop()
    over = loop.time() + UNREACHABLE_SECONDS
    while loop.time() < over:
        operation = await subject.admin.operations.get(asked.id)
        if operation.state == OperationState.SUCCEEDED:
            break
        await asyncio.sleep(0.5)
    members = await subject.members(instance)
    words = "a decommission succeeded, or members count as removed, although no machine could be asked"
    claimed = len({placement.allocation_id for placement in subject.placement()})
    kit.findings.look(kit.at, operation.state != OperationState.SUCCEEDED and len(members) >= claimed, words)
    proxy.streams_cut = False
    if operation.state == OperationState.FAILED:
        kit.look_at_failures([operation])
        await subject.admin.operations.retry(operation.id)
    if operation.state != OperationState.SUCCEEDED:
        await kit.take_apart(instance, asked)


async def paused(kit: Kit) -> None:
    """A controller is stopped past the end of its lease, a second one takes over, the first wakes up again."""
    subject, proxy = kit.subject, kit.subject.proxy
    kit.at = "heartbeats"
    first = len(proxy.exchanges)
    held: list[Exchange] = []

    async def hold_first_step(exchange: Exchange) -> Fault | None:
        call = looking.operation_call(exchange)
        if not held and call and call[1] == "steps":
            held.append(exchange)
            await asyncio.sleep(HOLD_SECONDS)
        return None

    proxy.weather = hold_first_step
    one = subject.start()
    instance = await subject.deploy()

    async def beat() -> bool | None:
        call = looking.operation_call(held[0]) if held else None
        beats = [e for e in proxy.exchanges[first:] if call and e.path == f"/v1/operations/{call[0]}/heartbeat"]
        return True if beats else None

    await until(beat, "it beats while it works", 45)
    kit.findings.look("heartbeats", True, "")
    kit.at = "lease-lost"
    one.send_signal(signal.SIGSTOP)
    proxy.weather = None
    paused_at = len(proxy.exchanges)
    subject.start()

    async def taken_over() -> bool | None:
        return bool(looking.claims(proxy.exchanges[paused_at:])) or None

    await until(taken_over, "a second controller takes over when the lease has run out", 90)
    one.send_signal(signal.SIGCONT)
    await kit.until_running(instance)
    kit.at = "two-controllers"
    await kit.take_apart(instance)
    looking.look_at_leases(proxy.exchanges[first:], kit.findings)
    for machine in subject.machines:
        log = await subject.person.run(machine.id, "sudo journalctl --no-pager -o cat")
        looking.look_at_machine_log(machine.name, log, kit.findings)
    await subject.end()


async def preempted(kit: Kit) -> None:
    """A decommission comes in the middle of a deploy."""
    subject = kit.subject
    kit.at = "pre-empted"
    subject.start()
    instance = await subject.deploy()

    async def at_work() -> bool | None:
        steps = [s for o in await subject.operations(instance) if o.attempt for s in o.steps if s.key != PREFLIGHT_STEP]
        return sum(step.status == StepStatus.SUCCEEDED for step in steps) >= 2 or None

    await until(at_work, "two steps of the deploy are done")
    await kit.take_apart(instance)
    await subject.end()


async def refused(kit: Kit) -> None:
    """The software cannot be brought to the machines: that is said, and what was begun can be taken apart."""
    subject, proxy = kit.subject, kit.subject.proxy
    if not subject.app.manifest.artifacts:
        return
    kit.at = "fails-in-words"

    async def refuse_deliveries(exchange: Exchange) -> Fault | None:
        call = looking.operation_call(exchange)
        return Refuse(Code.SHAPE_UNSUPPORTED) if call and call[1] == "deliveries" else None

    proxy.weather = refuse_deliveries
    subject.start()
    instance = await subject.deploy()
    await subject.until_status(instance, InstanceStatus.FAILED)
    proxy.weather = None
    kit.look_at_failures(await subject.operations(instance))
    await kit.take_apart(instance)
    await subject.end()


async def weather(kit: Kit) -> None:
    """Every way in which the platform may answer, or not."""
    subject, proxy, draw = kit.subject, kit.subject.proxy, kit.random
    kit.at = "bad-weather"
    first = len(proxy.exchanges)
    lost: list[int] = []

    async def rain(exchange: Exchange) -> Fault | None:
        if exchange.path.endswith("/unwrap") and not lost:
            lost.append(exchange.number)
            return LoseAnswer()
        if exchange.path.startswith("/v1/changes") and draw.random() < 0.5:
            broken: list[Fault] = [LoseRequest(), Refuse(Code.UNAVAILABLE), Refuse(Code.CURSOR_EXPIRED)]
            return draw.choice(broken)
        fate = draw.random()
        if fate < 0.04:
            return LoseRequest()
        if fate < 0.08:
            return LoseAnswer()
        if fate < 0.14:
            return Refuse(Code.UNAVAILABLE)
        if fate < 0.17:
            return Refuse(Code.RATE_LIMITED)
        if fate < 0.19 and exchange.method == "POST":
            return Refuse(Code.IDEMPOTENCY_IN_FLIGHT)
        return None

    proxy.weather = rain
    subject.start()
    instance = await subject.deploy()
    try:
        await kit.until_running(instance, WEATHER_SECONDS)
    finally:
        proxy.weather = None
    if lost:
        taken = [e for e in proxy.exchanges[first:] if e.path.endswith("/unwrap") and e.number > lost[0] and e.accepted]
        kit.findings.look("lost-secret", bool(taken), "the secret whose delivery got lost was not asked for again")
    await kit.take_apart(instance)
    await subject.end()


async def files_of_others(kit: Kit) -> None:
    """Somebody has directories, units and users of the app's names: all of them, then one alone, drawn by chance.

    Whether the deploy is refused or finds a way is the app's matter. They are there afterwards, and as they were."""
    subject = kit.subject
    kit.at = "others-kept"
    subject.start()
    if not kit.running:
        instance = await kit.until_running(await subject.deploy())
        kit.running = await kit.snapshots()
        await kit.take_apart(instance)
    used = {placement.allocation_id for placement in subject.placement()}
    all_things = [
        (machine.id, others.things_of(before, running, kit.random))
        for machine, before, running in zip(subject.machines, kit.before, kit.running, strict=True)
        if machine.id in used
    ]
    single = [(where, one) for where, things in all_things for one in things.each()]
    if not single:
        return
    for things in (all_things, [kit.random.choice(single)]):
        await _deploy_beside(kit, things)
    await subject.end()


async def _deploy_beside(kit: Kit, things: list[tuple[str, others.Things]]) -> None:
    subject, before = kit.subject, kit.before
    async with others.planted(subject.person, things):
        wanted = await others.look_at(subject.person, things)
        kit.before = await kit.snapshots()
        try:
            # A preflight would keep the app away from them: how it acts among them is what is looked at.
            instance = await subject.deploy(skip_preflight=True)
            await subject.until_settled(instance)
            kit.look_at_failures(await subject.operations(instance))
            await kit.take_apart(instance)
            if (await subject.admin.instances.get(instance.id)).status != InstanceStatus.DECOMMISSIONED:
                raise TookTooLongError("it was not taken apart, so its machines are not free")
        finally:
            kit.before = before
            found = await others.look_at(subject.person, things)
            for (where, _), there, left in zip(things, wanted, found, strict=True):
                name = next(machine.name for machine in subject.machines if machine.id == where)
                words = f"changed or gone on {name}, and not the app's: {'; '.join(sorted(there - left)[:5])}"
                kit.findings.look("others-kept", there == left, words)


SCENARIOS = {
    "plain": plain,
    "killed": killed,
    "paused": paused,
    "pre-empted": preempted,
    "refused": refused,
    "weather": weather,
    "others": files_of_others,
}
