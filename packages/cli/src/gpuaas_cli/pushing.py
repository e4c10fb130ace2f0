"""Push files to the registry, with progress."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpuaas_cli.errors import UNAVAILABLE, USAGE, CliError
from gpuaas_cli.session import Session

if TYPE_CHECKING:
    from gpuaas_contract.artifacts import Artifact


def read_key(path: Path | None) -> str | None:
    """Read and check a private key before anything is sent."""
    if path is None:
        return None
    from gpuaas_sdk.pushing import MAKE_A_KEY, UnusableKeyError, read_signing_key

    try:
        return read_signing_key(path)
    except UnusableKeyError as error:
        raise CliError(str(error), USAGE, hint=MAKE_A_KEY) from None


def _prepare(path: Path, scratch: Path) -> tuple[Path, str, str]:
    """Return the file to send, its name and its media type; pack a directory into a tar."""
    from gpuaas_contract import oci
    from gpuaas_sdk.packing import UnsafeTreeError, pack_directory

    if path.is_file():
        return path, path.name, oci.FILE
    if not path.is_dir():
        raise CliError(f"cannot push {path}: no such file or directory", USAGE)
    try:
        pack_directory(path, scratch / "tree.tar")
    except UnsafeTreeError as error:
        raise CliError(f"cannot push {path}: {error}", USAGE) from None
    return scratch / "tree.tar", f"{path.resolve().name}.tar", oci.DIRECTORY


async def push(
    session: Session,
    path: Path,
    name: str,
    owner: dict[str, str],
    *,
    media_type: str | None = None,
    artifact_type: str | None = None,
    sign_key: str | None = None,
) -> "Artifact":
    """Push a file as it is, or a directory as one tar. Pushing again sends only what is missing."""
    from gpuaas_contract import oci
    from gpuaas_contract.trees import UnsafeTreeError
    from gpuaas_sdk.errors import TransportError
    from gpuaas_sdk.pushing import end_progress, show_progress, uploads_directory

    with tempfile.TemporaryDirectory(prefix="gpuaas-") as scratch:
        file, file_name, kind = _prepare(path, Path(scratch))
        try:
            made = await session.client.artifacts.push(
                name,
                file,
                **owner,
                media_type=media_type or kind,
                artifact_type=artifact_type or oci.FILE_ARTIFACT,
                file_name=file_name,
                sign_key=sign_key,
                resume_dir=uploads_directory(),
                on_progress=show_progress(file_name, file.stat().st_size),
            )
        except UnsafeTreeError as error:
            raise CliError(f"cannot push {path}: {error}", USAGE) from None
        except TransportError as error:
            hint = "run the same command again: the upload resumes"
            raise CliError(f"cannot push {path}: {error}", UNAVAILABLE, hint=hint) from None
    end_progress(f"{file_name} {made.size} bytes {made.digest}")
    return made
