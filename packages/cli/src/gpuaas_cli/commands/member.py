"""Members of an instance: add, drain, resume, remove, replace, recover."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.commands.instance_preflight import preflight_members
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.inputs import read_inputs
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, InputWords, Options, Queue, Timeout, Wait, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.bulk import Bulk, BulkPolicy
    from gpuaas_contract.instances import Instance

app = noun(__name__, __doc__)

app.command(preflight_members, name="preflight")

InstanceName = Annotated[str, Parameter(help="The instance, by name or id.")]
MemberNames = Annotated[list[str], Parameter(help="Members, each by id, machine name or COMPONENT=MACHINE.")]
PolicyWords = Annotated[
    str, Parameter(name="--policy", help="all_or_nothing, best_effort, or the least number that must succeed.")
]
_ALL = "all_or_nothing"


@app.command(name="list")
async def list_(
    instance: InstanceName,
    /,
    *,
    all: Annotated[bool, Parameter(negative="", help="Also removed ones.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the members of an instance, their machines and allowed actions."""
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        members = await session.client.instances.members(found.id, removed=None if all else False).all()
        machines = {a.id: a.name async for a in session.client.allocations.list(project_id=found.project_id)}
    columns = {
        "component": lambda m: m.component_key,
        "machine": lambda m: machines.get(m.allocation_id, m.allocation_id),
        "status": lambda m: m.status,
        "conditions": lambda m: [f"{condition.type}={condition.status}" for condition in m.conditions],
        "actions": lambda m: [action.action for action in m.allowed_actions],
        "last operation": lambda m: m.last_operation_id,
        "id": lambda m: m.id,
    }
    output.items(members, columns, empty="No members.")


@app.command
async def add(
    instance: InstanceName,
    component: Annotated[str, Parameter(help="The component's key: gpuaas app show APP.")],
    machines: Annotated[list[str], Parameter(help="Machines for the new members, by name or id.")],
    /,
    *,
    policy: PolicyWords = _ALL,
    input: InputWords = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Add members to an instance, on machines of the project.

    ```
    gpuaas member add first worker two three --wait
    gpuaas member add first worker two three four --policy 2
    ```
    """
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        ids = [(await resolve.allocation(session, machine)).id for machine in machines]
        made = await session.client.instances.add_members(
            found.id, component, ids, policy=read_policy(policy), input=read_inputs(input)
        )
        await _finish(session, made, wait, timeout)


@app.command
async def drain(
    instance: InstanceName,
    members: MemberNames,
    /,
    *,
    policy: PolicyWords = _ALL,
    input: InputWords = None,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Drain members: they finish their work and get no new work."""
    await _act(instance, "drain", members, policy, input, queue, wait, timeout, options)


@app.command
async def resume(
    instance: InstanceName,
    members: MemberNames,
    /,
    *,
    policy: PolicyWords = _ALL,
    input: InputWords = None,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Resume drained members."""
    await _act(instance, "resume", members, policy, input, queue, wait, timeout, options)


@app.command
async def recover(
    instance: InstanceName,
    members: MemberNames,
    /,
    *,
    policy: PolicyWords = _ALL,
    input: InputWords = None,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Recover unhealthy members."""
    await _act(instance, "recover", members, policy, input, queue, wait, timeout, options)


@app.command
async def remove(
    instance: InstanceName,
    members: MemberNames,
    /,
    *,
    policy: PolicyWords = _ALL,
    input: InputWords = None,
    queue: Queue = False,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Remove members from an instance. Their machines stay.

    ```
    gpuaas member remove first two --yes --wait
    ```
    """
    confirm(f"Remove {', '.join(members)} from {instance}?", instance, yes=yes)
    await _act(instance, "remove", members, policy, input, queue, wait, timeout, options)


@app.command
async def run(
    instance: InstanceName,
    kind: Annotated[str, Parameter(help="An operation that the app's manifest declares for members.")],
    members: MemberNames,
    /,
    *,
    policy: PolicyWords = _ALL,
    input: InputWords = None,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Run one of the app's own operations on members."""
    await _act(instance, kind, members, policy, input, queue, wait, timeout, options)


@app.command
async def replace(
    instance: InstanceName,
    member: Annotated[str, Parameter(help="The member to replace: id, machine name or COMPONENT=MACHINE.")],
    machine: Annotated[str, Parameter(help="The new machine, by name or id.")],
    /,
    *,
    input: InputWords = None,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Replace a member by a new one on another machine.

    ```
    gpuaas member replace first two three --wait
    ```
    """
    from gpuaas_cli.commands.instance_change import show_or_wait

    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        going = await member_id(session, found, member)
        taking_over = (await resolve.allocation(session, machine)).id
        operation = await session.client.instances.request(
            found.id,
            "replace",
            member_id=going,
            input={**read_inputs(input), "allocation_id": taking_over},
            queue=queue,
        )
        await show_or_wait(session, operation, wait, timeout)


@app.command
async def forget(
    instance: InstanceName,
    member: Annotated[str, Parameter(help="The member: id, machine name or COMPONENT=MACHINE.")],
    /,
    *,
    reason: Annotated[str, Parameter(help="Why there is no proof, for the audit trail.")],
    yes: Yes = False,
    options: Options = DEFAULTS,
) -> None:
    """Write off a member whose removal failed, without proof that its machine is clean."""
    confirm(f"Write off {member} of {instance} without proof that its machine is clean?", instance, yes=yes)
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        gone = await session.client.members.forget(await member_id(session, found, member), reason)
        output.one(gone, {"member": gone.id, "component": gone.component_key, "status": gone.status})


async def _act(
    instance: str,
    kind: str,
    members: list[str],
    policy: str,
    input: list[str] | None,
    queue: bool,
    wait: bool,
    timeout: float,
    options: Options,
) -> None:
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        ids = [await member_id(session, found, wanted) for wanted in members]
        made = await session.client.instances.request_on_members(
            found.id, kind, ids, policy=read_policy(policy), input=read_inputs(input), queue=queue
        )
        await _finish(session, made, wait, timeout)


async def _finish(session: Session, bulk: "Bulk", wait: bool, timeout: float) -> None:
    from gpuaas_cli.waiting import check_bulk, wait_for_bulk

    if wait:
        bulk = await wait_for_bulk(session, bulk, timeout)
    show_bulk(bulk)
    if wait:
        check_bulk(bulk)
    else:
        first = next((result.operation_id for result in bulk.results if result.operation_id), None)
        if first:
            output.note(f"Next: gpuaas operation watch {first}")


def show_bulk(bulk: "Bulk") -> None:
    from gpuaas_contract.bulk import AtLeast

    if output.document(bulk):
        return
    policy = f"at least {bulk.policy.at_least}" if isinstance(bulk.policy, AtLeast) else bulk.policy.value
    output.pairs(
        {"kind": bulk.kind, "state": bulk.state, "policy": policy, "id": bulk.id, "correlation id": bulk.correlation_id}
    )
    output.heading("Results")
    rows = [
        [
            output.text(result.member_id or result.allocation_id),
            output.text("refused" if result.refused else result.state),
            result.refused.detail if result.refused else "",
            output.text(result.operation_id),
        ]
        for result in bulk.results
    ]
    output.table(rows, ["member", "state", "why", "operation"])


async def member_id(session: Session, instance: "Instance", wanted: str) -> str:
    """Return a member's id. A machine's name is enough where only one live member is on it."""
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.MEMBER):
        return wanted
    component, equals, machine = wanted.rpartition("=")
    allocation = await resolve.allocation(session, machine)
    members = await session.client.instances.members(instance.id, removed=False).all()
    found = [m for m in members if m.allocation_id == allocation.id and (not equals or m.component_key == component)]
    if len(found) == 1:
        return found[0].id
    hint = f"gpuaas member list {instance.name}"
    if not found:
        raise CliError(f"instance {instance.name} has no member on {wanted}", USAGE, hint=hint)
    keys = ", ".join(f"{member.component_key}={machine}" for member in found)
    raise CliError(f"instance {instance.name} has several members on {machine}: choose one of {keys}", USAGE, hint=hint)


def read_policy(words: str) -> "BulkPolicy":
    """Parse a policy: all_or_nothing, best_effort, or the least number that must succeed."""
    from gpuaas_contract.bulk import AtLeast, Policy

    if words.isdecimal() and int(words) > 0:
        return AtLeast(at_least=int(words))
    try:
        return Policy(words.replace("-", "_"))
    except ValueError:
        known = ", ".join(Policy)
        raise CliError(f"there is no policy {words!r}: use {known} or a number", USAGE) from None
