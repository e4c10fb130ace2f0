"""Machines of a project, or of a tenant."""

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, FromFile, Options, Timeout, Wait, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import open_session
from gpuaas_cli.shapes import NO_KIND, KindOptions

if TYPE_CHECKING:
    from gpuaas_cli.session import Session
    from gpuaas_contract.allocations import Allocation

app = noun(__name__, __doc__)
InTenant = Annotated[str | None, Parameter(help="Of this tenant itself, shared by its projects.")]


def _shape(allocation: "Allocation") -> str:
    shape = allocation.shape
    gpus = f", {shape.gpus} GPUs" if shape.gpus else ""
    kind = "" if shape.kind == "slice" else f"{shape.kind}: "
    return f"{kind}{shape.cpus} CPUs, {shape.memory_mib} MiB, {shape.disk_gib} GiB{gpus}"


def _show(allocation: "Allocation") -> None:
    output.one(
        allocation,
        {
            "name": allocation.name,
            "id": allocation.id,
            "owner": allocation.project_id or allocation.tenant_id,
            "status": allocation.status,
            "reason": allocation.reason,
            "activity": allocation.activity,
            "shape": _shape(allocation),
            "image": allocation.image,
            "charged now": "yes" if allocation.charged else "no",
            "charged from": allocation.charged_from,
            "charged until": allocation.charged_until,
            "hostname": allocation.hostname,
            "address": allocation.address,
            "host key": allocation.shape.external.host_key if allocation.shape.external else None,
            "credential": allocation.shape.external.credential_id if allocation.shape.external else None,
            "node": allocation.node_id,
            "volumes": [f"{v.name} at {v.path} ({v.status})" for v in allocation.volumes],
            "instances": allocation.instance_ids,
            "created": allocation.created_at,
            "correlation id": allocation.correlation_id,
        },
    )


def _show_all(allocations: "list[Allocation]") -> None:
    columns = {
        "name": lambda a: a.name,
        "status": lambda a: a.status,
        "shape": _shape,
        "address": lambda a: a.address,
        "in use by": lambda a: a.instance_ids,
        "id": lambda a: a.id,
    }
    output.items(allocations, columns, empty="No machines: gpuaas allocation create --name NAME --wait")


async def _owner(session: "Session", tenant: str | None) -> dict[str, str]:
    if tenant is not None:
        return {"tenant_id": (await resolve.tenant(session, tenant)).id}
    return {"project_id": await session.project_id()}


@app.command(name="list")
async def list_(
    *,
    tenant: InTenant = None,
    all: Annotated[bool, Parameter(negative="", help="Also released ones.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the machines of the project, or of a tenant."""
    async with open_session(options) as session:
        owner = await _owner(session, tenant)
        machines = session.client.allocations
        found = await machines.list(project_id=owner.get("project_id"), tenant_id=owner.get("tenant_id")).all()
    _show_all([a for a in found if all or a.status != "released"])


@app.command
async def show(allocation: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one machine, by name or id."""
    async with open_session(options) as session:
        _show(await resolve.allocation(session, allocation))


@app.command
async def create(
    *,
    name: Annotated[str | None, Parameter(help="Its name and host name.")] = None,
    count: Annotated[int | None, Parameter(help="Create this many (NAME-1, NAME-2, …), all or none.")] = None,
    cpus: int | None = None,
    memory_mib: int | None = None,
    disk_gib: int | None = None,
    gpus: int | None = None,
    volume: Annotated[
        list[str] | None, Parameter(negative="", help="NAME:/PATH of a volume to attach. Repeatable.")
    ] = None,
    image: Annotated[str | None, Parameter(help="Image; default: the node's own.")] = None,
    tenant: InTenant = None,
    kind: KindOptions = NO_KIND,
    from_file: FromFile = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Create machines: slices of a host, whole hosts, or external machines.

    ```
    gpuaas allocation create --name w --count 3 --wait
    gpuaas allocation create --name one --cpus 2 --memory-mib 4096 --gpus 1 --wait
    gpuaas allocation create --name whole --host --cpus 64 --wait
    gpuaas allocation create --name lab --external-address lab.example --external-host-key @host.pub \\
        --external-credential lab
    gpuaas allocation create --name one --volume home:/home/shared --wait
    gpuaas allocation create --from-file machine.json -o json
    ```
    """
    fields = merge(from_file, name=name, count=count, image=image)
    shape = {"cpus": cpus, "memory_mib": memory_mib, "disk_gib": disk_gib, "gpus": gpus}
    fields["shape"] = {**fields.get("shape", {}), **{key: value for key, value in shape.items() if value is not None}}
    kind.add_to(fields["shape"])
    async with open_session(options) as session:
        from gpuaas_contract.allocations import AllocationBatchCreate, AllocationCreate, AllocationStatus

        if tenant is not None or options.project is not None or not {"tenant_id", "project_id"} & set(fields):
            fields = {key: value for key, value in fields.items() if key not in {"tenant_id", "project_id"}}
            fields |= await _owner(session, tenant)
        await kind.find_credential(session, fields["shape"])
        if volume:
            fields["volumes"] = [await resolve.volume_at(session, item) for item in volume]
        machines = session.client.allocations
        several = AllocationBatchCreate.model_validate(fields) if "count" in fields else None
        body = several or AllocationCreate.model_validate(fields)
        rest: dict[str, Any] = {"tenant_id": body.tenant_id, "shape": body.shape, "image": body.image}
        rest["volumes"] = body.volumes
        if several is not None:
            made = (await machines.create_batch(body.project_id, body.name, several.count, **rest)).items
        else:
            made = [await machines.create(body.project_id, body.name, **rest)]
        if wait:
            from gpuaas_cli.waiting import wait_for_allocations

            made = await wait_for_allocations(session, made, AllocationStatus.ACTIVE, timeout)
    if several is not None:
        _show_all(made)
    else:
        _show(made[0])


@app.command
async def timeline(
    allocation: str,
    /,
    *,
    step: Annotated[str | None, Parameter(help="Only steps of this kind.")] = None,
    correlation_id: Annotated[str | None, Parameter(help="Only steps with this correlation id.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Show every step in the life of a machine."""
    async with open_session(options) as session:
        found = await resolve.allocation(session, allocation)
        machines = session.client.allocations
        entries = (await machines.timeline(found.id, step=step, correlation_id=correlation_id)).items
    columns = {
        "at": lambda e: e.at,
        "took": lambda e: "" if e.duration_seconds is None else output.seconds(e.duration_seconds),
        "step": lambda e: e.step,
        "message": lambda e: e.message,
        "correlation id": lambda e: e.correlation_id,
    }
    output.items(entries, columns, empty="No steps yet.")


@app.command
async def rename(allocation: str, name: str, /, *, options: Options = DEFAULTS) -> None:
    """Rename a machine. Its host name stays."""
    async with open_session(options) as session:
        found = await resolve.allocation(session, allocation)
        _show(await session.client.allocations.update(found.id, name=name))


@app.command
async def restart(
    allocation: str,
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Restart although an app uses the machine.")] = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Restart a machine. Its disk, address and host key stay."""
    async with open_session(options) as session:
        found = await resolve.allocation(session, allocation)
        changed = await session.client.allocations.restart(found.id, force=force)
        _show(await _wait_if_asked(session, changed, wait, timeout))


@app.command
async def resize(
    allocation: str,
    /,
    *,
    cpus: int | None = None,
    memory_mib: int | None = None,
    disk_gib: Annotated[int | None, Parameter(help="A disk can only grow.")] = None,
    gpus: int | None = None,
    force: Annotated[bool, Parameter(negative="", help="Do not ask the apps that use the machine.")] = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Resize a running machine.

    Sizes that are not given stay. Apps that use the machine are asked first.

    ```
    gpuaas allocation resize one --cpus 4 --memory-mib 8192 --wait
    ```
    """
    async with open_session(options) as session:
        found = await resolve.allocation(session, allocation)
        changed = await session.client.allocations.resize(
            found.id, cpus=cpus, memory_mib=memory_mib, disk_gib=disk_gib, gpus=gpus, force=force
        )
        _show(await _wait_if_asked(session, changed, wait, timeout))


@app.command
async def retry(
    allocation: str, /, *, wait: Wait = False, timeout: Timeout = WAIT_SECONDS, options: Options = DEFAULTS
) -> None:
    """Retry a failed creation or release."""
    from gpuaas_contract.allocations import AllocationStatus

    async with open_session(options) as session:
        found = await resolve.allocation(session, allocation)
        again = await session.client.allocations.retry(found.id)
        if wait:
            from gpuaas_cli.waiting import wait_for_allocation

            releases = again.status == AllocationStatus.RELEASING
            goal = AllocationStatus.RELEASED if releases else AllocationStatus.ACTIVE
            again = await wait_for_allocation(session, again, goal, timeout)
    _show(again)


async def _wait_if_asked(session: "Session", allocation: "Allocation", wait: bool, timeout: float) -> "Allocation":
    if not wait:
        return allocation
    from gpuaas_cli.waiting import wait_until_idle

    return await wait_until_idle(session, allocation, timeout)


@app.command
async def usage(allocation: str, /, *, options: Options = DEFAULTS) -> None:
    """Show a machine's usage records: charged time, and time on its node."""
    from gpuaas_cli.commands.usage import show_records

    async with open_session(options) as session:
        found = await resolve.allocation(session, allocation)
        tenant_id = found.tenant_id if found.project_id is None else None
        records = session.client.usage.list(project_id=found.project_id, tenant_id=tenant_id, allocation_id=found.id)
        show_records(await records.all())


@app.command
async def release(
    allocation: str,
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Release although an app uses the machine.")] = False,
    delete_volumes: Annotated[
        bool, Parameter(negative="", help="Also delete its volumes that no other machine has, with their data.")
    ] = False,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Release a machine: it is destroyed with its disk. Its volumes stay."""
    async with open_session(options) as session:
        from gpuaas_contract.allocations import AllocationStatus

        found = await resolve.allocation(session, allocation)
        volumes = " and of its volumes" if delete_volumes and found.volumes else ""
        confirm(f"Destroy machine {found.name} with all data on its disk{volumes}?", found.name, yes=yes)
        released = await session.client.allocations.release(found.id, force=force, delete_volumes=delete_volumes)
        if wait:
            from gpuaas_cli.waiting import wait_for_allocation

            released = await wait_for_allocation(session, released, AllocationStatus.RELEASED, timeout)
    _show(released)
