"""The versions of an app and their end."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import NOT_FOUND, USAGE, CliError
from gpuaas_cli.inputs import Yes, confirm
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.catalogue import AppVersionEntry

Version = Annotated[str, Parameter(help="APP@VERSION, for example echo@1.2.0, or the version's id.")]
Reason = Annotated[str, Parameter(help="For those who run it: why, and what to take instead.")]


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


async def deprecate(version: Version, /, *, reason: Reason = "", options: Options = DEFAULTS) -> None:
    """Deprecate a version: it runs on, and is deployed only where it is asked for by its number.

    ```
    gpuaas app deprecate echo@1.2.0 --reason "1.3.0 starts faster"
    ```
    """
    async with open_session(options) as session:
        found = await _find(session, version)
        _show_version(await session.client.app_versions.deprecate(found, reason=reason))


async def retire(version: Version, /, *, reason: Reason = "", yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Retire a version for good: it runs on where it runs; nothing is deployed with it or upgraded to it.

    ```
    gpuaas app retire echo@1.2.0 --reason "loses data on restart; upgrade to 1.3.0" --yes
    ```
    """
    confirm(f"Retire {version}? This cannot be undone.", version, yes=yes)
    async with open_session(options) as session:
        found = await _find(session, version)
        _show_version(await session.client.app_versions.retire(found, reason=reason))


async def _find(session: Session, wanted: str) -> str:
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.APP_VERSION):
        return wanted
    slug, at, number = wanted.partition("@")
    if not at:
        raise CliError(f"{wanted!r} names no version", USAGE, hint=f"gpuaas app versions {slug}, then {slug}@VERSION")
    found: list[AppVersionEntry] = [v async for v in session.client.apps.versions(slug) if v.version == number]
    if not found:
        raise CliError(f"there is no version {number} of {slug}", NOT_FOUND, hint=f"gpuaas app versions {slug}")
    return found[0].id


def _show_version(version: object) -> None:
    from gpuaas_contract.catalogue import AppVersion

    assert isinstance(version, AppVersion)
    shown = {"app": version.app_slug, "version": version.version, "status": version.status, "reason": version.reason}
    output.one(version, shown)
