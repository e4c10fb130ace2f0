"""Disks that outlive machines and can be shared by several."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, FromFile, Options, Timeout, Wait, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.volumes import Volume

app = noun(__name__, __doc__)


def _machines(volume: "Volume") -> list[str]:
    def words(status: str) -> str:
        return "" if status == "attached" else f" ({status})"

    return [f"{item.allocation_name}:{item.path}{words(item.status)}" for item in volume.attachments]


def _show(volume: "Volume") -> None:
    output.one(
        volume,
        {
            "name": volume.name,
            "id": volume.id,
            "status": volume.status,
            "reason": volume.reason,
            "size": f"{volume.size_gib} GiB",
            "machines": _machines(volume),
            "problems": [f"{a.allocation_name}: {a.reason}" for a in volume.attachments if a.reason],
            "node": volume.node_id,
            "created": volume.created_at,
        },
    )


@app.command(name="list")
async def list_(
    *,
    all: Annotated[bool, Parameter(negative="", help="Also deleted ones.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the volumes of the project."""
    async with open_session(options) as session:
        found = await session.client.volumes.list(project_id=await session.project_id()).all()
    columns = {
        "name": lambda v: v.name,
        "status": lambda v: v.status,
        "size": lambda v: f"{v.size_gib} GiB",
        "machines": _machines,
        "id": lambda v: v.id,
    }
    shown = [v for v in found if all or v.status != "deleted"]
    output.items(shown, columns, empty="No volumes: gpuaas volume create --name NAME --size-gib 10")


@app.command
async def show(volume: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one volume, by name or id."""
    async with open_session(options) as session:
        _show(await resolve.volume(session, volume))


@app.command
async def create(
    *,
    name: str | None = None,
    size_gib: int | None = None,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Create a volume. Its first machine decides its node.

    ```
    gpuaas volume create --name home --size-gib 50
    gpuaas volume attach home one /home/shared --wait
    ```
    """
    fields = merge(from_file, name=name, size_gib=size_gib)
    async with open_session(options) as session:
        from gpuaas_contract.volumes import VolumeCreate

        if options.project is not None or "project_id" not in fields:
            fields["project_id"] = await session.project_id()
        body = VolumeCreate.model_validate(fields)
        _show(await session.client.volumes.create(body.project_id, body.name, size_gib=body.size_gib))


@app.command
async def attach(
    volume: str,
    allocation: str,
    path: str,
    /,
    *,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Attach a volume at a path of a machine; several machines on its node can share it.

    ```
    gpuaas volume attach home one /home/shared --wait
    ```
    """
    async with open_session(options) as session:
        found, machine = await resolve.volume(session, volume), await resolve.allocation(session, allocation)
        changed = await session.client.volumes.attach(found.id, allocation_id=machine.id, path=path)
        if wait:
            from gpuaas_cli.waiting import wait_for_volume

            def attached(now: "Volume") -> bool:
                return any(a.allocation_id == machine.id and a.status == "attached" for a in now.attachments)

            changed = await wait_for_volume(session, changed, attached, timeout, allocation_id=machine.id)
    _show(changed)


@app.command
async def detach(
    volume: str,
    allocation: str,
    /,
    *,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Detach a volume from a machine. Its data stay."""
    async with open_session(options) as session:
        found, machine = await resolve.volume(session, volume), await resolve.allocation(session, allocation)
        changed = await session.client.volumes.detach(found.id, allocation_id=machine.id)
        if wait:
            from gpuaas_cli.waiting import wait_for_volume

            def detached(now: "Volume") -> bool:
                return all(a.allocation_id != machine.id for a in now.attachments)

            changed = await wait_for_volume(session, changed, detached, timeout, allocation_id=machine.id)
    _show(changed)


@app.command
async def retry(
    volume: str, /, *, wait: Wait = False, timeout: Timeout = WAIT_SECONDS, options: Options = DEFAULTS
) -> None:
    """Retry a failed attach, detach or delete."""
    async with open_session(options) as session:
        found = await resolve.volume(session, volume)
        changed = await session.client.volumes.retry(found.id)
        if wait:
            from gpuaas_cli.waiting import wait_for_volume

            def settled(now: "Volume") -> bool:
                moving = {"attaching", "detaching", "deleting"}
                return not moving & {now.status, *(a.status for a in now.attachments)}

            changed = await wait_for_volume(session, changed, settled, timeout)
    _show(changed)


@app.command
async def delete(
    volume: str,
    /,
    *,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Delete a volume with its data. Refused while it is attached."""
    async with open_session(options) as session:
        found = await resolve.volume(session, volume)
        confirm(f"Delete volume {found.name} with its data?", found.name, yes=yes)
        changed = await session.client.volumes.delete(found.id)
        if wait:
            from gpuaas_cli.waiting import wait_for_volume

            changed = await wait_for_volume(session, changed, lambda now: now.status == "deleted", timeout)
    _show(changed)
