"""Files for machines: push, sign, verify, promote."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import NOT_FOUND, CliError
from gpuaas_cli.options import DEFAULTS, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.artifacts import Artifact

app = noun(__name__, __doc__)

AppName = Annotated[str | None, Parameter(name="--app", help="Of this app instead of the project.")]


async def owner_of(session: Session, app_name: str | None) -> dict[str, str]:
    return {"app_slug": app_name} if app_name else {"project_id": await session.project_id()}


def _show(artifact: "Artifact") -> None:
    output.one(
        artifact,
        {
            "name": artifact.name,
            "status": artifact.status,
            "digest": artifact.digest,
            "file": artifact.file_name,
            "size": artifact.size,
            "type": artifact.artifact_type,
            "media type": artifact.media_type,
            "content": artifact.content_digest,
            "repository": artifact.repository,
            "verified with": artifact.trusted_key_id,
            "id": artifact.id,
            "created": artifact.created_at,
        },
    )


async def _find(session: Session, wanted: str, app_name: str | None) -> "Artifact":
    """Find an artifact by id or digest, or the newest of a name."""
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.ARTIFACT):
        return await session.client.artifacts.get(wanted)
    found = await session.client.artifacts.list(**await owner_of(session, app_name), limit=None).all()
    matching = [artifact for artifact in found if wanted in (artifact.digest, artifact.name)]
    if not matching:
        raise CliError(f"there is no artifact {wanted!r}", NOT_FOUND, hint="gpuaas artifact list")
    return max(matching, key=lambda artifact: artifact.id)


@app.command
async def push(
    path: Annotated[Path, Parameter(help="A file, or a directory to send as one tar.")],
    /,
    *,
    name: Annotated[str, Parameter(help="Its name; several versions may share it.")],
    app_name: AppName = None,
    sign_key: Annotated[
        Path | None, Parameter(help="Private key to sign it with (PEM, ECDSA P-256 or ed25519).")
    ] = None,
    media_type: Annotated[str | None, Parameter(help="Media type of the file.")] = None,
    artifact_type: Annotated[str | None, Parameter(help="OCI artifact type.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Push a file to the registry and register it.

    An interrupted push resumes with the same command.

    ```
    gpuaas artifact push model.safetensors --name model --sign-key key.pem
    gpuaas artifact push packages.tar --name packages --app APP --sign-key key.pem
    ```
    """
    from gpuaas_cli import pushing

    key = pushing.read_key(sign_key)
    async with open_session(options) as session:
        owner = await owner_of(session, app_name)
        made = await pushing.push(
            session, path, name, owner, media_type=media_type, artifact_type=artifact_type, sign_key=key
        )
    _show(made)
    if made.status == "uploaded":
        output.note(f"Next: gpuaas artifact verify {made.id}, then gpuaas artifact promote {made.id}")


@app.command
async def register(
    digest: str,
    /,
    *,
    name: Annotated[str, Parameter(help="Last part of the repository name.")],
    app_name: AppName = None,
    options: Options = DEFAULTS,
) -> None:
    """Register an artifact that another program (oras, for example) pushed, by its manifest's digest."""
    async with open_session(options) as session:
        made = await session.client.artifacts.register(name, digest, **await owner_of(session, app_name))
    _show(made)


@app.command(name="list")
async def list_(*, app_name: AppName = None, options: Options = DEFAULTS) -> None:
    """List the artifacts of the project, or of an app."""
    async with open_session(options) as session:
        found = await session.client.artifacts.list(**await owner_of(session, app_name), limit=None).all()
    columns = {
        "name": lambda a: a.name,
        "status": lambda a: a.status,
        "size": lambda a: a.size,
        "digest": lambda a: a.digest,
        "id": lambda a: a.id,
    }
    output.items(found, columns, empty="No artifacts: gpuaas artifact push FILE --name NAME")


@app.command
async def show(artifact: str, /, *, app_name: AppName = None, options: Options = DEFAULTS) -> None:
    """Show one artifact, by id or digest, or the newest of a name."""
    async with open_session(options) as session:
        _show(await _find(session, artifact, app_name))


@app.command
async def verify(artifact: str, /, *, app_name: AppName = None, options: Options = DEFAULTS) -> None:
    """Verify an artifact's signature with the trusted keys of its owner."""
    async with open_session(options) as session:
        found = await _find(session, artifact, app_name)
        _show(await session.client.artifacts.verify(found.id))


@app.command
async def promote(artifact: str, /, *, app_name: AppName = None, options: Options = DEFAULTS) -> None:
    """Promote a verified artifact: it can be delivered to machines."""
    async with open_session(options) as session:
        found = await _find(session, artifact, app_name)
        _show(await session.client.artifacts.promote(found.id))


@app.command
async def retire(artifact: str, /, *, app_name: AppName = None, options: Options = DEFAULTS) -> None:
    """Stop delivering an artifact. Copies on machines stay."""
    async with open_session(options) as session:
        found = await _find(session, artifact, app_name)
        _show(await session.client.artifacts.retire(found.id))


@app.command
async def delete(artifact: str, /, *, app_name: AppName = None, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Delete an unpromoted artifact, also from the registry."""
    async with open_session(options) as session:
        found = await _find(session, artifact, app_name)
        confirm(f"Delete {found.name} {found.digest}?", found.name, yes=yes)
        _show(await session.client.artifacts.delete(found.id, revision=found.revision))
