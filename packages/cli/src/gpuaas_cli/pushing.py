"""Sending files to the registry, with progress for people."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuaas_cli.errors import UNAVAILABLE, USAGE, CliError
from gpuaas_cli.session import Session

if TYPE_CHECKING:
    from gpuaas_contract.artifacts import Artifact


def read_key(path: Path | None) -> str | None:
    """The private key in the file, checked before anything is sent."""
    if path is None:
        return None
    from gpuaas_sdk.signing import read_private_key

    try:
        pem = path.read_text()
        read_private_key(pem)
    except (OSError, ValueError) as error:
        hint = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem"
        raise CliError(f"{path} is not a signing key: {error}", USAGE, hint=hint) from None
    return pem


def _prepare(path: Path, scratch: Path) -> tuple[Path, str, str]:
    """The file to send, its name, and its media type."""
    from gpuaas_contract import oci
    from gpuaas_sdk.packing import UnsafeTreeError, pack_directory

    if path.is_file():
        return path, path.name, oci.FILE
    if not path.is_dir():
        raise CliError(f"there is no file {path}", USAGE)
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
    """A file as it is, a directory as one tar. To do it again sends only what is missing."""
    from gpuaas_contract import oci
    from gpuaas_contract.trees import UnsafeTreeError
    from gpuaas_sdk.errors import TransportError

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
                resume_dir=Path.home() / ".cache" / "gpuaas" / "uploads",
                on_progress=_progress(file_name, file.stat().st_size),
            )
        except UnsafeTreeError as error:
            raise CliError(f"cannot push {path}: {error}", USAGE) from None
        except TransportError as error:
            hint = "give the same command again: it goes on where it stopped"
            raise CliError(f"cannot push {path}: {error}", UNAVAILABLE, hint=hint) from None
    ended = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{ended}  {file_name} {made.size} bytes {made.digest}", file=sys.stderr)
    return made


def _progress(name: str, size: int) -> Callable[[int], None]:
    """On a terminal, the share that was sent; elsewhere, a line where it goes on and one for each quarter."""
    is_terminal, total = sys.stderr.isatty(), size or 1
    told = -1

    def show(sent: int) -> None:
        nonlocal told
        if is_terminal:
            shown = f"{100 * sent // total} % of {size / 1e6:.1f} MB"
            print(f"\r\x1b[K  {name} {shown}", end="", file=sys.stderr, flush=True)
            return
        quarter = 4 * sent // total
        if told < 0 and sent == size:
            print(f"  {name} is in the registry already", file=sys.stderr, flush=True)
        elif told < 0 and sent:
            print(f"  {name} goes on after {sent} of {size} bytes", file=sys.stderr, flush=True)
        elif quarter > max(told, 0):
            print(f"  {name} {25 * quarter} %", file=sys.stderr, flush=True)
        told = max(told, quarter)

    return show
