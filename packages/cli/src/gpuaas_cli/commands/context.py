"""Saved logins: a platform, an account, a project."""

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import find_target
from gpuaas_sdk.profile import config as configuration

app = noun(__name__, __doc__)


@app.command(name="list")
def list_(*, options: Options = DEFAULTS) -> None:
    """List the contexts; tokens are never shown."""
    config = configuration.load()
    rows = [
        {
            "name": name,
            "current": name == config.current,
            "api_url": context.api_url,
            "email": context.email or context.service_account_file,
            "project": context.project,
            "ca_file": context.ca_file,
            "logged_in": bool(context.token or context.service_account_file),
        }
        for name, context in config.contexts.items()
    ]
    columns = {key.replace("_", " "): (lambda row, key=key: row[key]) for key in (rows[0] if rows else {})}
    output.items(rows, columns, empty="No contexts yet: gpuaas login --api-url URL --email EMAIL")


@app.command
def use(
    name: Annotated[str | None, Parameter(help="The context to make current.")] = None,
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Choose the current context; with --project, also its project.

    ```
    gpuaas context use production
    gpuaas context use --project research
    ```
    """
    with configuration.changing():
        config = configuration.load()
        target = find_target(replace(options, context=name or options.context), config)
        context = target.context or configuration.Context(api_url=target.api_url)
        context = replace(context, project=options.project or context.project)
        configuration.save(config.with_context(target.name, context))
    if not output.document({"context": target.name, "api_url": context.api_url, "project": context.project}):
        print(f"Context {target.name}: {context.api_url}, project {context.project or 'not chosen'}")
