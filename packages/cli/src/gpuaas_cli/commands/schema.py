"""Request schemas of the API, from the platform itself."""

from typing import Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import NOT_FOUND, CliError
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import find_target, quiet_httpx
from gpuaas_sdk.profile import config as configuration

_REF = "#/components/schemas/"


async def schema(
    operation: Annotated[str | None, Parameter(help="An operation id, for example create_allocation.")] = None,
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Print the JSON Schema of an API operation, or list the operations.

    Needs no login. --from-file takes the body of a create operation.

    ```
    gpuaas schema
    gpuaas schema create_allocation -o json
    ```
    """
    document = await _fetch(options)
    found = {
        str(described["operationId"]): (verb.upper(), path, described)
        for path, verbs in document["paths"].items()
        for verb, described in verbs.items()
    }
    if operation is None:
        _list(found)
        return
    wanted = operation.replace("-", "_")
    if wanted not in found:
        import difflib

        near = ", ".join(difflib.get_close_matches(wanted, found)) or "none is similar"
        raise CliError(f"the API has no operation {operation!r} (similar: {near})", NOT_FOUND, hint="gpuaas schema")
    shown = _describe(document, *found[wanted])
    if not output.document(shown):
        output.yaml(shown)


async def _fetch(options: Options) -> Any:
    quiet_httpx()
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.credentials import StaticToken

    target = find_target(options, configuration.load())
    async with GpuaasClient(target.api_url, StaticToken(""), user_agent="gpuaas-cli", ca_file=target.ca_file) as client:
        return await client.openapi()


def _list(found: dict[str, tuple[str, str, dict[str, Any]]]) -> None:
    rows = [
        {"operation": name, "method": verb, "path": path, "permission": described.get("x-permission", "")}
        for name, (verb, path, described) in sorted(found.items())
    ]
    columns = {key: (lambda row, key=key: row[key]) for key in ("operation", "method", "path", "permission")}
    output.items(rows, columns, empty="The platform describes no operations.")


def _describe(document: dict[str, Any], verb: str, path: str, described: dict[str, Any]) -> dict[str, Any]:
    parameters = [_resolve(document, parameter) for parameter in described.get("parameters", [])]
    bodies = described.get("requestBody", {}).get("content", {})
    shown: dict[str, Any] = {
        "operation": described["operationId"],
        "request": f"{verb} {path}",
        "description": described.get("description", ""),
        "permission": described.get("x-permission"),
        "parameters": [
            {key: p[key] for key in ("name", "in", "required", "description", "schema") if key in p} for p in parameters
        ],
    }
    for media_type, body in bodies.items():
        shown["media_type"] = media_type
        shown["body"] = _self_contained(document, body["schema"])
        if examples := body.get("examples"):
            shown["examples"] = {name: example["value"] for name, example in examples.items()}
    return shown


def _resolve(document: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    found: Any = part
    if "$ref" in part:
        found = document
        for key in part["$ref"].removeprefix("#/").split("/"):
            found = found[key]
    return dict(found)


def _self_contained(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with all its references, complete for a validator."""
    definitions: dict[str, Any] = {}

    def rewrite(part: Any) -> Any:
        if isinstance(part, list):
            return [rewrite(item) for item in part]
        if not isinstance(part, dict):
            return part
        reference = part.get("$ref", "")
        if isinstance(reference, str) and reference.startswith(_REF):
            name = reference.removeprefix(_REF)
            if name not in definitions:
                definitions[name] = {}
                definitions[name] = rewrite(document["components"]["schemas"][name])
            return {**part, "$ref": f"#/$defs/{name}"}
        return {key: rewrite(value) for key, value in part.items()}

    root = rewrite(schema)
    if set(root) == {"$ref"}:
        root = definitions.pop(root["$ref"].removeprefix("#/$defs/"))
    return {**root, "$defs": definitions} if definitions else dict(root)
