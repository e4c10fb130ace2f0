"""Hosts that run machines (operators)."""

from typing import TYPE_CHECKING

from gpuaas_cli import output, resolve
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.nodes import Node

app = noun(__name__, __doc__)


def _use(node: object, what: str) -> str:
    capacity = getattr(getattr(node, "inventory", None), "capacity", None)
    used = getattr(getattr(node, "allocated", None), what)
    return f"{used}/{getattr(capacity, what)}" if capacity is not None else str(used)


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List the nodes with their allocated and total capacity."""
    async with open_session(options) as session:
        found = await session.client.nodes.list().all()
    columns = {
        "name": lambda n: n.name,
        "status": lambda n: n.status,
        "offers": lambda n: n.inventory.offers if n.inventory else None,
        "cpus": lambda n: _use(n, "cpus"),
        "memory mib": lambda n: _use(n, "memory_mib"),
        "gpus": lambda n: _use(n, "gpus"),
        "machines": lambda n: len(n.allocation_ids),
        "last seen": lambda n: n.last_seen_at,
        "id": lambda n: n.id,
    }
    output.items(found, columns, empty="No nodes yet: gpuaas node join-token NAME")


@app.command
async def show(node: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one node, by name or id."""
    async with open_session(options) as session:
        _show(await resolve.node(session, node))


def _show(found: "Node") -> None:
    inventory = found.inventory
    output.one(
        found,
        {
            "name": found.name,
            "id": found.id,
            "status": found.status,
            "conditions": [condition.message for condition in found.conditions],
            "wanted": found.intent,
            "last seen": found.last_seen_at,
            "identity revoked": found.identity_revoked_at,
            "rotation asked for": found.rotation_requested_at,
            "link replaced": found.link_replaced_at,
            "inventory refused": found.inventory_refused,
            "cpus": _use(found, "cpus"),
            "memory MiB": _use(found, "memory_mib"),
            "disk GiB": _use(found, "disk_gib"),
            "GPUs": _use(found, "gpus"),
            "GPU devices": inventory.gpu_devices if inventory else None,
            "offers": inventory.offers if inventory else None,
            "address": inventory.address if inventory else None,
            "virtualisation": inventory.virtualisation if inventory else None,
            "images": inventory.images if inventory else None,
            "caveats": inventory.caveats if inventory else None,
            "affected" if found.status == "offline" else "carries": found.allocation_ids,
            "differences": [f"{d.finding} {d.allocation_id or d.volume_id}: {d.message}" for d in found.differences],
        },
    )


async def _change(node: str, what: str, options: Options) -> None:
    async with open_session(options) as session:
        found = await resolve.node(session, node)
        _show(await getattr(session.client.nodes, what)(found.id))


@app.command
async def cordon(node: str, /, *, options: Options = DEFAULTS) -> None:
    """Cordon a node: its machines keep running, it takes no new ones."""
    await _change(node, "cordon", options)


@app.command
async def uncordon(node: str, /, *, options: Options = DEFAULTS) -> None:
    """Let a node take new machines again."""
    await _change(node, "uncordon", options)


@app.command
async def drain(node: str, /, *, options: Options = DEFAULTS) -> None:
    """Drain a node: it takes no new machines, and owners of its machines are told to move."""
    await _change(node, "drain", options)


@app.command
async def retire(node: str, /, *, options: Options = DEFAULTS) -> None:
    """Take an empty node out of service for good."""
    await _change(node, "retire", options)


@app.command(name="revoke-identity")
async def revoke_identity(node: str, /, *, options: Options = DEFAULTS) -> None:
    """Cut off a node's agent at once. A new join token of the same name lets the host back in."""
    await _change(node, "revoke_identity", options)


@app.command(name="rotate-identity")
async def rotate_identity(node: str, /, *, options: Options = DEFAULTS) -> None:
    """Let a node's agent make a new key."""
    await _change(node, "rotate_identity", options)


@app.command(name="join-token")
async def join_token(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Create a token that enrols one host under this name. It is shown once."""
    async with open_session(options) as session:
        made = await session.client.join_tokens.create(name)
    output.one(made, {"node": made.node_name, "token": made.token, "expires": made.expires_at})
