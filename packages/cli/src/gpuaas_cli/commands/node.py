"""Nodes: the hosts that carry machines."""

from gpuaas_cli import output, resolve
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun("node", "Enrolled hosts (operators).")


def _use(node: object, what: str) -> str:
    capacity = getattr(getattr(node, "inventory", None), "capacity", None)
    used = getattr(getattr(node, "allocated", None), what)
    return f"{used}/{getattr(capacity, what)}" if capacity is not None else str(used)


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List the nodes, with what is allocated of what they have."""
    async with open_session(options) as session:
        found = await session.client.nodes.list().all()
    columns = {
        "name": lambda n: n.name,
        "status": lambda n: n.status,
        "cpus": lambda n: _use(n, "cpus"),
        "memory mib": lambda n: _use(n, "memory_mib"),
        "gpus": lambda n: _use(n, "gpus"),
        "last seen": lambda n: n.last_seen_at,
        "id": lambda n: n.id,
    }
    output.items(found, columns, empty="No nodes yet: gpuaas node join-token NAME")


@app.command
async def show(node: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one node, by name or id."""
    async with open_session(options) as session:
        found = await resolve.node(session, node)
    inventory = found.inventory
    output.one(
        found,
        {
            "name": found.name,
            "id": found.id,
            "status": found.status,
            "last seen": found.last_seen_at,
            "cpus": _use(found, "cpus"),
            "memory MiB": _use(found, "memory_mib"),
            "disk GiB": _use(found, "disk_gib"),
            "GPUs": _use(found, "gpus"),
            "GPU devices": inventory.gpu_devices if inventory else None,
            "virtualisation": inventory.virtualisation if inventory else None,
            "images": inventory.images if inventory else None,
        },
    )


@app.command(name="join-token")
async def join_token(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Make a token that enrols one host under this name. It is shown once."""
    async with open_session(options) as session:
        made = await session.client.join_tokens.create(name)
    output.one(made, {"node": made.node_name, "token": made.token, "expires": made.expires_at})
