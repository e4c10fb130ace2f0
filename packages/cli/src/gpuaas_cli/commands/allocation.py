"""Allocations: the machines of a project."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.inputs import FromFile, Yes, confirm, merge
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, Options, Timeout, Wait, noun
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.allocations import Allocation

app = noun("allocation", "Machines of a project.")


def _shape(allocation: "Allocation") -> str:
    shape = allocation.shape
    gpus = f", {shape.gpus} GPUs" if shape.gpus else ""
    return f"{shape.cpus} CPUs, {shape.memory_mib} MiB, {shape.disk_gib} GiB{gpus}"


def _show(allocation: "Allocation") -> None:
    output.one(
        allocation,
        {
            "name": allocation.name,
            "id": allocation.id,
            "status": allocation.status,
            "reason": allocation.reason,
            "shape": _shape(allocation),
            "hostname": allocation.hostname,
            "address": allocation.address,
            "node": allocation.node_id,
            "instances": allocation.instance_ids,
            "created": allocation.created_at,
            "correlation id": allocation.correlation_id,
        },
    )


@app.command(name="list")
async def list_(
    *,
    all: Annotated[bool, Parameter(negative="", help="Also released ones.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the machines of the project."""
    async with open_session(options) as session:
        found = await session.client.allocations.list(project_id=await session.project_id()).all()
    columns = {
        "name": lambda a: a.name,
        "status": lambda a: a.status,
        "shape": _shape,
        "address": lambda a: a.address,
        "in use by": lambda a: a.instance_ids,
        "id": lambda a: a.id,
    }
    shown = [a for a in found if all or a.status != "released"]
    output.items(shown, columns, empty="No machines: gpuaas allocation create --name NAME --wait")


@app.command
async def show(allocation: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one machine, by name or id."""
    async with open_session(options) as session:
        _show(await resolve.allocation(session, allocation))


@app.command
async def create(
    *,
    name: Annotated[str | None, Parameter(help="Also its host name.")] = None,
    cpus: int | None = None,
    memory_mib: int | None = None,
    disk_gib: int | None = None,
    gpus: int | None = None,
    from_file: FromFile = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Ask for a machine.

    ```
    gpuaas allocation create --name one --cpus 2 --memory-mib 4096 --gpus 1 --wait
    gpuaas allocation create --from-file machine.json -o json
    ```
    """
    fields = merge(from_file, name=name)
    shape = {"cpus": cpus, "memory_mib": memory_mib, "disk_gib": disk_gib, "gpus": gpus}
    fields["shape"] = {**fields.get("shape", {}), **{key: value for key, value in shape.items() if value is not None}}
    async with open_session(options) as session:
        from gpuaas_contract.allocations import AllocationCreate, AllocationStatus

        if options.project is not None or "project_id" not in fields:
            fields["project_id"] = await session.project_id()
        body = AllocationCreate.model_validate(fields)
        made = await session.client.allocations.create(body.project_id, body.name, shape=body.shape)
        if wait:
            from gpuaas_cli.waiting import wait_for_allocation

            made = await wait_for_allocation(session, made, AllocationStatus.ACTIVE, timeout)
    _show(made)


@app.command
async def timeline(allocation: str, /, *, options: Options = DEFAULTS) -> None:
    """Every step in the life of a machine."""
    async with open_session(options) as session:
        found = await resolve.allocation(session, allocation)
        entries = (await session.client.allocations.timeline(found.id)).items
    columns = {
        "at": lambda e: e.at,
        "step": lambda e: e.step,
        "message": lambda e: e.message,
        "correlation id": lambda e: e.correlation_id,
    }
    output.items(entries, columns, empty="Nothing happened yet.")


@app.command
async def release(
    allocation: str,
    /,
    *,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Give a machine back; it is destroyed with all that is on it."""
    async with open_session(options) as session:
        from gpuaas_contract.allocations import AllocationStatus

        found = await resolve.allocation(session, allocation)
        confirm(f"Destroy the machine {found.name} with all that is on it?", found.name, yes=yes)
        released = await session.client.allocations.release(found.id)
        if wait:
            from gpuaas_cli.waiting import wait_for_allocation

            released = await wait_for_allocation(session, released, AllocationStatus.RELEASED, timeout)
    _show(released)
