"""Requests for several members at once, and what became of each."""

from gpuaas_cli import output, resolve
from gpuaas_cli.commands.member import show_bulk
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun(__name__, __doc__)


@app.command(name="list")
async def list_(instance: str, /, *, options: Options = DEFAULTS) -> None:
    """List the requests for several members of an instance."""
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        bulks = await session.client.instances.bulk_operations(found.id).all()
    columns = {
        "kind": lambda b: b.kind,
        "state": lambda b: b.state,
        "members": lambda b: len(b.results),
        "refused": lambda b: sum(result.refused is not None for result in b.results),
        "requested": lambda b: b.created_at,
        "id": lambda b: b.id,
    }
    output.items(bulks, columns, empty="No requests for several members yet.")


@app.command
async def show(id: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one request: each member's operation, or the reason why it was refused."""
    async with open_session(options) as session:
        show_bulk(await session.client.bulk_operations.get(id))
