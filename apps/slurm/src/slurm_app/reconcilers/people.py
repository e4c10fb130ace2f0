"""sync-people: everybody who may use the instance can submit, and nobody else. The platform makes their users."""

import asyncio
import hashlib

from gpuaas_contract.base import JsonObject
from gpuaas_contract.grants import GrantStatus
from gpuaas_contract.instances import Member
from gpuaas_contract.people import Person
from gpuaas_sdk import ObserveContext, OperationContext
from gpuaas_sdk.errors import ConflictError
from slurm_app.reconcilers.cluster import Cluster, condition
from slurm_app.slurm import people as slurm_people
from slurm_app.store import Store

KIND = "sync-people"
CONDITION = "PeopleMapped"
KNOWN = "people"
"""In the detail of the controller's member: a digest of the people that were brought to Slurm last."""
ACCOUNT = "account"
"""Likewise: the account that they are associated with."""
ACCOUNT_SECONDS = 30.0
MOST_NAMES = 10


async def reconcile(operation: OperationContext, store: Store) -> JsonObject:
    return await sync(operation, await Cluster.read(operation, store))


async def sync(operation: OperationContext, cluster: Cluster) -> JsonObject:
    controller = operation.machine(cluster.controller.allocation_id)
    scope = cluster.scope(operation, [])
    async with operation.step("map-people", "Bring people up to date", member_usable=True) as step:
        present = present_people(await _settled_people(operation, cluster.controller))
        numbers = await slurm_people.read_numbers(controller, [person.login for person in present])
        mapped, missing = divide(present, numbers, cluster.controller.allocation_id)
        change = slurm_people.compare(mapped, await slurm_people.read_associations(controller, cluster.account))
        if change:
            await slurm_people.ensure_mapped(
                controller, change, cluster_name=scope.cluster_name, account=cluster.account
            )
            await operation.wait_for(
                "slurmctld to know who may submit",
                lambda: _is_loaded(operation, cluster, mapped),
                every=0.3,
                seconds=30,
            )
        step.message = f"{len(mapped)} can submit; {len(change.add)} new, {len(change.remove)} lost the right"
        said: JsonObject = {
            "mapped": len(mapped),
            "added": list(change.add),
            "removed": list(change.remove),
            "missing": missing,
        }
        step.evidence = said
    await _report(operation, cluster, present, missing)
    return said


def present_people(people: list[Person]) -> list[Person]:
    return [person for person in people if person.left_at is None]


def digest_of(people: list[Person]) -> str:
    listed = ",".join(sorted(person.login for person in people))
    return hashlib.sha256(listed.encode()).hexdigest()[:16]


def divide(people: list[Person], numbers: dict[str, int], allocation_id: str) -> tuple[list[str], dict[str, str]]:
    """Divide into those whom the controller's machine knows by their number, and the others, with the reason."""
    mapped, missing = [], {}
    for person in people:
        number = numbers.get(person.login)
        if number == person.uid:
            mapped.append(person.login)
        elif number is not None:
            missing[person.login] = f"the controller's machine has a user of that name with the number {number}"
        else:
            missing[person.login] = _why_missing(person, allocation_id)
    return mapped, missing


def _why_missing(person: Person, allocation_id: str) -> str:
    entry = next((entry for entry in person.entries if entry.allocation_id == allocation_id), None)
    if entry is None:
        return f"the platform makes no users on this machine: make {person.login} with the number {person.uid} there"
    return entry.reason or f"the controller's machine does not have the user yet ({entry.status.value})"


async def _settled_people(operation: OperationContext, controller: Member) -> list[Person]:
    """Wait a while for users that the machine is just being told of; one that is away keeps nobody else waiting."""

    async def look() -> list[Person] | None:
        people = await operation.people()
        pending = [
            person
            for person in present_people(people)
            for entry in person.entries
            if entry.allocation_id == controller.allocation_id and entry.status == GrantStatus.PENDING
        ]
        return people if not pending else None

    try:
        async with asyncio.timeout(ACCOUNT_SECONDS):
            return await operation.wait_for("the machine to know everybody", look, every=0.3)
    except TimeoutError:
        return await operation.people()


async def _is_loaded(operation: OperationContext, cluster: Cluster, mapped: list[str]) -> bool | None:
    controller = operation.machine(cluster.controller.allocation_id)
    present = await slurm_people.read_associations(controller, cluster.account)
    return None if slurm_people.compare(mapped, present) else True


async def _report(
    operation: OperationContext, cluster: Cluster, present: list[Person], missing: dict[str, str]
) -> None:
    reason = "UsersMissing" if missing else "AllMapped"
    shown = "; ".join(f"{login}: {why}" for login, why in list(missing.items())[:MOST_NAMES])
    generation = cluster.instance.generation
    await operation.report_instance(conditions=[condition(CONDITION, not missing, reason, shown[:1_000], generation)])
    member = await operation.client.members.get(cluster.controller.id)
    detail = {**member.adapter_detail, KNOWN: digest_of(present), ACCOUNT: cluster.account}
    await operation.report_member(member.id, adapter_detail=detail)


async def observe_people(context: ObserveContext, controller: Member, account: str) -> None:
    """Ask for the operation where Slurm and the platform differ."""
    people = present_people(await context.people())
    machine = context.machine(controller.allocation_id)
    made = [person.login for person in people if _is_made(person, controller.allocation_id)]
    if slurm_people.compare(made, await slurm_people.read_associations(machine, account)).worth_asking(
        [person.login for person in people]
    ):
        await ask(context, controller)


def _is_made(person: Person, allocation_id: str) -> bool:
    return any(e.allocation_id == allocation_id and e.status == GrantStatus.ACTIVE for e in person.entries)


async def observe_unseen(context: ObserveContext, controller: Member) -> None:
    """Without an observer on the machine: ask where the people are others than those that were brought last."""
    people = present_people(await context.people())
    if digest_of(people) != controller.adapter_detail.get(KNOWN, digest_of([])):
        await ask(context, controller)


async def ask(context: ObserveContext, controller: Member) -> None:
    try:
        await context.request(KIND, member_id=controller.id)
    except ConflictError:
        # Something else is under way on the controller, and wakes us at its end.
        return
