"""Your own logins: where you are logged in, and how to end one."""

from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun(__name__, __doc__)


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List your logins, on this machine and on others."""
    async with open_session(options) as session:
        found = await session.client.sessions.list().all()
    columns = {
        "kind": lambda s: s.kind,
        "client": lambda s: s.client,
        "this one": lambda s: "yes" if s.current else "",
        "since": lambda s: s.created_at,
        "last used": lambda s: s.last_used_at,
        "ends": lambda s: s.expires_at,
        "id": lambda s: s.id,
    }
    output.items(found, columns, empty="No logins.")


@app.command
async def end(
    id: Annotated[str, Parameter(help="From `gpuaas session list`.")], /, *, options: Options = DEFAULTS
) -> None:
    """End one of your logins, and with it every token that it gave. To end this one: `gpuaas logout`."""
    async with open_session(options) as session:
        ended = await session.client.sessions.end(id)
    output.one(ended, {"ended": ended.id, "client": ended.client, "since": ended.created_at})
