"""observe: compare the nodes of slurmctld with the members of the platform, and report the differences. A repair is an
operation that somebody asks for."""

import asyncio
from contextlib import suppress

from gpuaas_contract.instances import Condition, ConditionStatus, Member, MemberStatus
from gpuaas_sdk import MachineUnreachableError, NotObservableError, ObserveContext, ObservedMachine
from gpuaas_sdk.errors import ConflictError
from gpuaas_sdk.machines.parallel import AT_ONCE
from slurm_app.errors import NotReadyError
from slurm_app.reconcilers import limits, people
from slurm_app.reconcilers.cluster import CONTROLLER, WORKER, condition
from slurm_app.slurm import limit_probe, munge, nodes, phantoms

REFUSALS = {"clock_skew": "ClockSkew", "munge_refused": "MungeRefused"}
_NO_NODE = nodes.NodeRecord("no")
_SETTLED = {MemberStatus.READY, MemberStatus.DRAINED}


async def observe(context: ObserveContext) -> None:
    """Look only at a cluster that was usable once: before that, its deploy reports its state."""
    generation = context.instance.generation
    if not any(c.type == "Ready" and c.status == ConditionStatus.TRUE for c in context.instance.conditions):
        return
    try:
        seen = await nodes.read_nodes(_controller(context))
    except NotObservableError as error:
        # Not a doubt about the cluster: nobody looks between operations, and the last one said how it is.
        await context.report_instance(
            conditions=[condition("Observed", False, "NoObserver", str(error)[:500], generation)]
        )
        await people.observe_unseen(context, _controller_member(context))
        return
    except (MachineUnreachableError, NotReadyError) as error:
        await context.report_instance(
            conditions=[condition("Degraded", None, "NotObserved", str(error)[:500], generation)]
        )
        return
    await _look_at_people(context)
    workers = [member for member in context.live_members if member.component_key == WORKER]
    problems = []
    for worker in workers:
        if worker.status in _SETTLED and (problem := await _look_at(context, worker, seen)):
            problems.append(problem)
    known = {str(worker.adapter_detail.get("node")) for worker in workers}
    ghosts = sorted(set(seen) - known)
    # A worker that is just joining or leaving is in one list and not yet, or no longer, in the other.
    if ghosts and all(worker.status in _SETTLED for worker in workers):
        problems.append(f"slurmctld has nodes that are no members: {', '.join(ghosts)}")
    problems += await _end_phantoms(context, workers, seen)
    reason = "NodesMissing" if problems else "AllNodesWork"
    said = condition("Degraded", bool(problems), reason, "; ".join(problems)[:1_000], generation)
    await context.report_instance(conditions=[said, *await _look_at_limits(context, workers)])


async def _look_at_limits(context: ObserveContext, workers: list[Member]) -> list[Condition]:
    """Compare what limits jobs with what was delivered. That a job is limited is proven by operations only."""
    before = limits.present(context.instance)
    verdict = await limit_probe.read_configured(_controller(context))
    if verdict is None:
        settled = [worker for worker in workers if worker.status in _SETTLED]
        free = asyncio.Semaphore(AT_ONCE)
        whole = await asyncio.gather(*(_is_whole(context, worker, free) for worker in settled))
        names = [str(worker.adapter_detail.get("node")) for worker in settled]
        if damaged := [name for name, well in zip(names, whole, strict=True) if not well]:
            verdict = limit_probe.broken(damaged)
        elif before is None or before.reason in limit_probe.OBSERVED:
            verdict = limit_probe.REPAIRED
    return [limits.as_condition(verdict, context.instance.generation)] if verdict else []


async def _is_whole(context: ObserveContext, worker: Member, free: asyncio.Semaphore) -> bool:
    """A machine that does not answer is not called damaged: its condition Ready says that it is silent."""
    async with free:
        try:
            return await limit_probe.read_whole(context.machine(worker.allocation_id))
        except MachineUnreachableError:
            return True


async def _end_phantoms(context: ObserveContext, workers: list[Member], seen: dict[str, nodes.NodeRecord]) -> list[str]:
    """Ask for the recovery of a worker with jobs that nobody runs, which ends them; return what was found."""
    found = []
    for worker in workers:
        host = str(worker.adapter_detail.get("node"))
        if worker.status != MemberStatus.READY or not {"MIXED", "ALLOCATED"} & seen.get(host, _NO_NODE).state:
            continue
        try:
            jobs, others = await phantoms.read_phantoms(_controller(context), context.machine(worker.allocation_id))
        except (MachineUnreachableError, NotReadyError):
            continue
        if not jobs:
            continue
        words = phantoms.words_of(host, jobs)
        if others:
            found.append(f"{words}; job {others[0]} runs there, so they are left: scontrol requeue them")
            continue
        found.append(f"{words}; its recovery was asked for")
        # One that is asked for meanwhile, by whomever, does the same.
        with suppress(ConflictError):
            await context.request("recover", member_id=worker.id)
    return found


def _controller_member(context: ObserveContext) -> Member:
    (controller,) = [member for member in context.live_members if member.component_key == CONTROLLER]
    return controller


def _controller(context: ObserveContext) -> ObservedMachine:
    return context.machine(_controller_member(context).allocation_id)


async def _look_at_people(context: ObserveContext) -> None:
    controller = _controller_member(context)
    account = controller.adapter_detail.get(people.ACCOUNT)
    if controller.status != MemberStatus.READY or account is None:
        return
    try:
        await people.observe_people(context, controller, str(account))
    except NotReadyError:
        # slurmctld does not say who may submit: the next look asks again.
        return


async def _look_at(context: ObserveContext, worker: Member, seen: dict[str, nodes.NodeRecord]) -> str:
    host = str(worker.adapter_detail.get("node"))
    record = seen.get(host, nodes.NodeRecord("no"))
    works = record.present == "yes" and record.responding and "DOWN" not in record.state
    reason, words = "Observed", record.words
    if not works and (refusal := await _refusal(context, worker)):
        reason, words = REFUSALS[refusal.code], f"{words}: {refusal.detail}"
    said = condition("Ready", works, reason, words, context.instance.generation)
    await context.report_member(worker.id, conditions=[said])
    return "" if works else f"{host} is {words}"


async def _refusal(context: ObserveContext, worker: Member) -> munge.Refusal | None:
    """Where Slurm only knows that a node does not answer, munge may know why."""
    try:
        return await munge.read_refusal(context.machine(worker.allocation_id), _controller(context))
    except MachineUnreachableError:
        return None
