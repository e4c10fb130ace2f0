"""Manifests before they are published: what they may hold, and what is wrong with one."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import FAILURE, CliError
from gpuaas_cli.options import DEFAULTS, Options

ManifestPath = Annotated[Path, Parameter(help="The app's manifest, YAML or JSON.")]


async def validate(manifest: ManifestPath, /, *, options: Options = DEFAULTS) -> None:
    """Say all that is wrong with a manifest, by line and column. Asks no platform.

    ```
    gpuaas app validate manifest.yaml
    manifest.yaml:14:5: there is no component 'taill' (there is: head, tail)
    ```
    """
    from gpuaas_cli.manifest_file import read_manifest

    document, problems = read_manifest(manifest)
    shown = [
        {"file": p.file, "line": p.line, "column": p.column, "pointer": p.pointer, "message": p.message}
        for p in problems
    ]
    if not output.document({"valid": not problems, "problems": shown}):
        for problem in problems:
            print(output.clean(str(problem).replace("\n", " ")))
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise CliError(f"{manifest} cannot be published: {count}", FAILURE, hint="gpuaas app schema")
    output.note(f"{manifest}: {document['slug']} {document['version']} can be published.")


async def schema(*, options: Options = DEFAULTS) -> None:
    """Print the JSON Schema of a manifest, for an editor. Asks no platform.

    ```
    gpuaas app schema > manifest.schema.json
    ```
    """
    from gpuaas_contract.manifest import manifest_schema

    if output.format == "yaml":
        output.yaml(manifest_schema())
    else:
        print(json.dumps(manifest_schema(), indent=2))
