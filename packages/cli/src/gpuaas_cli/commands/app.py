"""The catalogue: apps and their versions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.catalogue import AppVersion
    from gpuaas_contract.manifest import ArtifactSlot, Manifest

app = noun("app", "The catalogue: apps and their versions.")
app.command("gpuaas_cli.commands.app_new:new", name="new", help="Make a new app that works, to be changed from there.")
_MANIFEST, _VERSIONS = "gpuaas_cli.commands.app_manifest", "gpuaas_cli.commands.app_versions"
app.command(f"{_MANIFEST}:validate", name="validate", help="Say all that is wrong with a manifest, line by line.")
app.command(f"{_MANIFEST}:schema", name="schema", help="The JSON Schema of a manifest.")
app.command(f"{_VERSIONS}:versions", name="versions", help="The versions of an app.")
app.command(f"{_VERSIONS}:deprecate", name="deprecate", help="Deploy a version only where it is asked for.")
app.command(f"{_VERSIONS}:retire", name="retire", help="Deploy a version nowhere any more.")


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List the apps of the catalogue."""
    async with open_session(options) as session:
        found = await session.client.apps.list().all()
    columns = {
        "app": lambda a: a.slug,
        "title": lambda a: a.title,
        "version": lambda a: a.latest_version,
        "status": lambda a: a.status,
        "published": lambda a: a.published_at,
    }
    output.items(found, columns, empty="The catalogue is empty: gpuaas app publish manifest.yaml")


@app.command
async def show(
    slug: str,
    /,
    *,
    version: Annotated[str, Parameter(help="A version, or latest.")] = "latest",
    options: Options = DEFAULTS,
) -> None:
    """Show an app: what it is made of, what it takes, what it can do."""
    async with open_session(options) as session:
        found = await session.client.app_versions.get(slug, version)
    _show(found)


def _show(found: "AppVersion") -> None:
    if output.document(found):
        return
    manifest = found.manifest
    output.pairs(
        {
            "app": manifest.slug,
            "title": manifest.title,
            "description": manifest.description,
            "version": manifest.version,
            "status": f"{found.status}{': ' + found.reason if found.reason else ''}",
            "runtime": f"{manifest.runtime.name} {manifest.runtime.version}",
            "published": found.created_at,
        }
    )
    output.heading("Components (--place KEY=ALLOCATION)")
    rows = [
        [c.key + (" *" if c.primary else ""), c.title, f"{c.min} to {c.max}", output.text(c.may_share_machine_with)]
        for c in manifest.components
    ]
    output.table(rows, ["key", "title", "count", "may share with"])
    properties: dict[str, Any] = manifest.inputs.get("properties", {})
    if properties:
        output.heading("Inputs (--input KEY=VALUE)")
        required = manifest.inputs.get("required", [])
        inputs = [
            [
                key,
                output.text(p.get("type")),
                "yes" if key in required else "",
                output.text(p.get("default")),
                str(p.get("description") or p.get("title") or ""),
            ]
            for key, p in properties.items()
        ]
        output.table(inputs, ["key", "type", "required", "default", "description"])
    output.heading("Operations")
    output.table([[o.kind, o.title, o.component or ""] for o in manifest.operations], ["kind", "title", "component"])


@app.command
async def publish(
    manifest: Annotated[Path, Parameter(help="The app's manifest, YAML or JSON.")],
    /,
    *,
    artifact: Annotated[
        list[str] | None,
        Parameter(negative="", help="NAME=FILE: push a file for a slot of the manifest; may be repeated."),
    ] = None,
    sign_key: Annotated[
        Path | None, Parameter(help="Sign the files with this private key; the app must trust its public half.")
    ] = None,
    options: Options = DEFAULTS,
) -> None:
    """Publish a version of an app, with its artifacts. Doing it again with the same content changes nothing.

    ```
    gpuaas trusted-key add builds key.pub --app APP
    gpuaas app publish manifest.yaml --artifact bundle=bundle.tar --sign-key key.pem
    ```
    """
    import yaml

    from gpuaas_cli import pushing
    from gpuaas_contract.manifest import Manifest

    try:
        parsed = Manifest.model_validate(yaml.safe_load(manifest.read_text()))
    except yaml.YAMLError as error:
        raise CliError(f"{manifest} is not YAML: {error}", USAGE) from None
    files = _artifact_files(parsed, artifact or [])
    key = pushing.read_key(sign_key)
    async with open_session(options) as session:
        slots = []
        for slot in parsed.artifacts:
            if slot.name in files:
                digest = await _bring(session, parsed.slug, slot, files[slot.name], key)
                slot = slot.model_copy(update={"digest": digest})
            slots.append(slot)
        _show(await _publish(session, parsed.model_copy(update={"artifacts": slots})))


async def _publish(session: Session, manifest: "Manifest") -> "AppVersion":
    from gpuaas_sdk.errors import VersionExistsError

    try:
        return await session.client.app_versions.publish(manifest)
    except VersionExistsError:
        found = await session.client.app_versions.get(manifest.slug, manifest.version)
        if found.manifest != manifest:
            raise
        output.note(f"{manifest.slug} {manifest.version} was published before, with the same content.")
        return found


def _artifact_files(manifest: "Manifest", given: list[str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    slots = {slot.name for slot in manifest.artifacts}
    for text in given:
        name, found, file = text.partition("=")
        if not found or name not in slots:
            known = ", ".join(sorted(slots)) or "none"
            raise CliError(f"--artifact {text}: not NAME=FILE with a slot of the manifest ({known})", USAGE)
        files[name] = Path(file)
    missing = [slot.name for slot in manifest.artifacts if slot.digest is None and slot.name not in files]
    if missing:
        raise CliError(f"no file for the artifact {', '.join(missing)}", USAGE, hint=f"--artifact {missing[0]}=FILE")
    return files


async def _bring(session: Session, slug: str, slot: "ArtifactSlot", file: Path, sign_key: str | None) -> str:
    """Pushed, verified and promoted: a version names nothing less."""
    from gpuaas_cli import pushing

    name = slot.name.replace("_", "-")
    made = await pushing.push(session, file, name, {"app_slug": slug}, media_type=slot.media_type, sign_key=sign_key)
    await session.client.artifacts.verify(made.id)
    await session.client.artifacts.promote(made.id)
    return made.digest
