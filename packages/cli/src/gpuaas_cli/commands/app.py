"""The catalogue: apps and their versions."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.commands.app_bundle import bundle_packages
from gpuaas_cli.commands.app_new import new
from gpuaas_cli.errors import FAILURE, NOT_FOUND, USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.catalogue import AppVersion, AppVersionEntry
    from gpuaas_contract.manifest import ArtifactSlot, Manifest

app = noun(__name__, __doc__)
app.command(new)
app.command(bundle_packages)

ManifestPath = Annotated[Path, Parameter(help="The app's manifest, YAML or JSON.")]
Version = Annotated[str, Parameter(help="APP@VERSION, for example echo@1.2.0, or the version's id.")]
Reason = Annotated[str, Parameter(help="For its users: why, and what to use instead.")]


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
    version: Annotated[str, Parameter(help="Version.")] = "latest",
    options: Options = DEFAULTS,
) -> None:
    """Show an app: its components, modes, inputs and operations. A star marks what is primary or the default."""
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
    output.heading("Components (--place KEY=MACHINE)")
    rows = [
        [c.key + (" *" if c.primary else ""), c.title, f"{c.min} to {c.max}", output.text(c.may_share_machine_with)]
        for c in manifest.components
    ]
    output.table(rows, ["key", "title", "count", "may share with"])
    if manifest.modes:
        output.heading("Modes (--mode KEY)")
        modes = [
            [m.key + (" *" if m.key == manifest.default_mode else ""), m.title, output.text(m.actions), m.description]
            for m in manifest.modes
        ]
        output.table(modes, ["key", "title", "actions", "description"])
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
    if readable := [[s.name, s.kind, ", ".join(s.readable_by)] for s in manifest.secrets if s.readable_by]:
        output.heading("Secrets that people may read (gpuaas secret read INSTANCE NAME)")
        output.table(readable, ["name", "kind", "readable by"])
    output.heading("Operations")
    output.table([[o.kind, o.title, o.component or ""] for o in manifest.operations], ["kind", "title", "component"])


@app.command
async def validate(manifest: ManifestPath, /, *, options: Options = DEFAULTS) -> None:
    """Check a manifest and print every problem by line and column.

    Works without a platform.

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
        found = output.count(len(problems), "problem")
        raise CliError(f"{manifest} is not valid: {found}", FAILURE, hint="gpuaas app schema")
    output.note(f"{manifest}: {document['slug']} {document['version']} is valid.")


@app.command
async def schema(*, options: Options = DEFAULTS) -> None:
    """Print the JSON Schema of a manifest, for an editor.

    Works without a platform.

    ```
    gpuaas app schema > manifest.schema.json
    ```
    """
    from gpuaas_contract.manifest import manifest_schema

    if output.format == "yaml":
        output.yaml(manifest_schema())
    else:
        print(json.dumps(manifest_schema(), indent=2))


@app.command
async def publish(
    manifest: ManifestPath,
    /,
    *,
    artifact: Annotated[
        list[str] | None,
        Parameter(negative="", help="NAME=FILE: the file for an artifact of the manifest. Repeatable."),
    ] = None,
    sign_key: Annotated[
        Path | None, Parameter(help="Private key to sign the files with; the app must trust its public key.")
    ] = None,
    options: Options = DEFAULTS,
) -> None:
    """Publish a version of an app with its artifacts.

    Publishing the same content again changes nothing.

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
                digest = await _push_promoted(session, parsed.slug, slot, files[slot.name], key)
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
        output.note(f"{manifest.slug} {manifest.version} is already published with the same content.")
        return found


def _artifact_files(manifest: "Manifest", given: list[str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    slots = {slot.name for slot in manifest.artifacts}
    for text in given:
        name, found, file = text.partition("=")
        if not found or name not in slots:
            known = ", ".join(sorted(slots)) or "none"
            raise CliError(
                f"cannot read --artifact {text}: expected NAME=FILE with an artifact of the manifest ({known})", USAGE
            )
        files[name] = Path(file)
    missing = [slot.name for slot in manifest.artifacts if slot.digest is None and slot.name not in files]
    if missing:
        raise CliError(f"no file given for artifact {', '.join(missing)}", USAGE, hint=f"--artifact {missing[0]}=FILE")
    return files


async def _push_promoted(session: Session, slug: str, slot: "ArtifactSlot", file: Path, sign_key: str | None) -> str:
    """Push, verify and promote a file: a version needs all three."""
    from gpuaas_cli import pushing

    name = slot.name.replace("_", "-")
    made = await pushing.push(session, file, name, {"app_slug": slug}, media_type=slot.media_type, sign_key=sign_key)
    await session.client.artifacts.verify(made.id)
    await session.client.artifacts.promote(made.id)
    return made.digest


@app.command
async def versions(slug: str, /, *, options: Options = DEFAULTS) -> None:
    """List the versions of an app, the newest last."""
    async with open_session(options) as session:
        found = await session.client.apps.versions(slug).all()
    columns = {
        "version": lambda v: v.version,
        "status": lambda v: v.status,
        "runtime": lambda v: f"{v.runtime.name} {v.runtime.version}",
        "published": lambda v: v.created_at,
        "reason": lambda v: v.reason,
        "id": lambda v: v.id,
    }
    output.items(found, columns, empty="No versions.")


@app.command
async def deprecate(version: Version, /, *, reason: Reason = "", options: Options = DEFAULTS) -> None:
    """Deprecate a version.

    Instances keep running; it is deployed only when requested by number.

    ```
    gpuaas app deprecate echo@1.2.0 --reason "1.3.0 starts faster"
    ```
    """
    async with open_session(options) as session:
        found = await _find_version(session, version)
        _show_version(await session.client.app_versions.deprecate(found, reason=reason))


@app.command
async def retire(version: Version, /, *, reason: Reason = "", yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Retire a version for good.

    Instances keep running; nothing new is deployed with it or upgraded to it.

    ```
    gpuaas app retire echo@1.2.0 --reason "loses data on restart; upgrade to 1.3.0" --yes
    ```
    """
    confirm(f"Retire {version}? This cannot be undone.", version, yes=yes)
    async with open_session(options) as session:
        found = await _find_version(session, version)
        _show_version(await session.client.app_versions.retire(found, reason=reason))


async def _find_version(session: Session, wanted: str) -> str:
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.APP_VERSION):
        return wanted
    slug, at, number = wanted.partition("@")
    if not at:
        raise CliError(f"cannot read {wanted!r}: expected APP@VERSION", USAGE, hint=f"gpuaas app versions {slug}")
    found: list[AppVersionEntry] = [v async for v in session.client.apps.versions(slug) if v.version == number]
    if not found:
        raise CliError(f"app {slug} has no version {number}", NOT_FOUND, hint=f"gpuaas app versions {slug}")
    return found[0].id


def _show_version(version: "AppVersion") -> None:
    shown = {"app": version.app_slug, "version": version.version, "status": version.status, "reason": version.reason}
    output.one(version, shown)
