"""The change feed, live."""

import json
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.changes import Change

app = noun(__name__, __doc__)


@app.command
async def watch(
    *,
    noun: Annotated[list[str] | None, Parameter(negative="", help="Only changes of this noun. Repeatable.")] = None,
    tenant: Annotated[str | None, Parameter(help="Only changes of this tenant.")] = None,
    instance: Annotated[str | None, Parameter(help="Only changes of this instance.")] = None,
    all: Annotated[bool, Parameter(negative="", help="Changes of all projects, not only the chosen one.")] = False,
    since: Annotated[
        str | None, Parameter(help="A cursor, or `start` for all stored changes; default: from now on.")
    ] = None,
    count: Annotated[int | None, Parameter(help="Return after this many changes.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Follow the change feed until interrupted, one line per change.

    With -o json, one object per line. A lost connection resumes where it was: no change is missed or repeated.

    ```
    gpuaas changes watch --noun operation --noun instance
    gpuaas changes watch --all --since start --count 100 -o json
    ```
    """
    async with open_session(options) as session:
        from gpuaas_sdk.changes import Relist

        chosen = session.target.project if tenant is None and not all else None
        feed = session.client.changes(
            since=since,
            nouns=noun or [],
            tenant_id=(await resolve.tenant(session, tenant)).id if tenant else None,
            project_id=(await session.find_project(chosen)).id if chosen else None,
            instance_id=(await resolve.instance(session, instance)).id if instance else None,
            stream=True,
        )
        seen = 0
        async with aclosing(aiter(feed)) as changes:
            async for change in changes:
                if isinstance(change, Relist):
                    # The first one is expected; after a later one, changes may be missing.
                    if change.reason != "start":
                        output.note(f"Changes may be missing here: {change.reason}")
                    continue
                _print(change)
                seen += 1
                if count is not None and seen >= count:
                    return


def _print(change: "Change") -> None:
    if output.format == "json":
        print(json.dumps(output.plain(change), ensure_ascii=False), flush=True)
    elif output.format == "yaml":
        print("---")
        output.yaml(change)
        sys.stdout.flush()
    else:
        what = f"{change.noun} {change.event}"
        message = f"  {output.clean(change.message)}" if change.message else ""
        print(f"{output.text(change.at)}  {what:<28}  {change.resource_id}{message}".rstrip(), flush=True)
