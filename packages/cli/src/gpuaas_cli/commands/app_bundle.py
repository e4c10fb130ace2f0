"""Bundle Debian packages for machines without a network."""

import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import FAILURE, UNAVAILABLE, USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options

DEFAULT_GROUP = "packages"
MOST_STATUS_BYTES = 64 * 1024 * 1024
_USAGE_CODES = {"bad_package_name", "bad_group_name", "no_packages", "package_unknown"}
_HOW = "gpuaas ssh MACHINE -- cat /var/lib/dpkg/status >status, on a machine that is as its image made it"


def bundle_packages(
    packages: Annotated[
        list[str] | None, Parameter(negative="", help=f"Names of packages, as the group `{DEFAULT_GROUP}`.")
    ] = None,
    /,
    *,
    dpkg_status: Annotated[
        Path, Parameter(help="The file /var/lib/dpkg/status of a machine as it comes from its image.")
    ],
    output_file: Annotated[Path, Parameter(name="--output-file", help="The file to write.")],
    group: Annotated[
        list[str] | None,
        Parameter(negative="", help="NAME=PACKAGE[,PACKAGE…]: what one component needs alone. Repeatable."),
    ] = None,
    refresh: Annotated[
        bool, Parameter(negative="", help="Ask the archive again, where the same bundle was made before.")
    ] = False,
    options: Options = DEFAULTS,
) -> None:
    """Make one file of Debian packages, with all that they need and the machines' image lacks.

    Runs on a Debian host of the same release and architecture as the machines, with a way to the archive; needs
    apt-get, dpkg-scanpackages (package dpkg-dev) and zstd. The same packages give the same file.

    ```
    gpuaas ssh demo-1 -- cat /var/lib/dpkg/status >status
    gpuaas app bundle-packages redis-server --dpkg-status status --output-file packages.tar
    gpuaas app publish manifest.yaml --artifact packages=packages.tar --sign-key key.pem
    ```
    """
    from gpuaas_sdk import BundleError, make_package_bundle

    groups = _groups(packages or [], group or [])
    with tempfile.TemporaryDirectory(prefix="gpuaas-bundle-") as directory:
        status = Path(directory) / "status"
        status.write_bytes(_read_status(dpkg_status))
        try:
            made = make_package_bundle(groups, output=output_file, dpkg_status=status, refresh=refresh, say=output.note)
        except BundleError as error:
            away = error.code == "archive_unreachable"
            raise CliError(
                str(error), USAGE if error.code in _USAGE_CODES else UNAVAILABLE if away else FAILURE
            ) from None
        except OSError as error:
            raise CliError(f"cannot write the bundle: {error}", FAILURE) from None
    fields = {"file": str(made.path), "digest": made.digest, "size": made.size, "packages": made.packages}
    if not output.document({**fields, "groups": groups}):
        output.pairs(fields)


def _groups(packages: list[str], given: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {DEFAULT_GROUP: packages} if packages else {}
    for text in given:
        name, found, names = text.partition("=")
        if not found or not names:
            raise CliError(f"cannot read --group {text!r}: expected NAME=PACKAGE[,PACKAGE…]", USAGE)
        if name in groups:
            raise CliError(f"cannot read --group {text!r}: the group {name} is there already", USAGE)
        groups[name] = names.split(",")
    if not groups:
        raise CliError("no package given", USAGE, hint="gpuaas app bundle-packages NAME… or --group NAME=PACKAGE,…")
    return groups


def _read_status(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_STATUS_BYTES + 1)
    except OSError as error:
        raise CliError(f"cannot read the dpkg status {path}: {error.strerror}", USAGE, hint=_HOW) from None
    # Every Debian machine has dpkg itself; a file without it is something else.
    if len(content) > MOST_STATUS_BYTES or b"Package: dpkg\n" not in content:
        raise CliError(f"{path} is not the dpkg status of a machine", USAGE, hint=_HOW)
    return content
