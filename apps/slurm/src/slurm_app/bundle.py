"""`slurm-app bundle`: the Debian packages of all roles, as one file."""

from pathlib import Path

from gpuaas_sdk import PackageBundle, make_package_bundle
from gpuaas_sdk.bundles.building import Apt, Say, find_sources, package_name
from slurm_app.limits.package import ensure_repository
from slurm_app.slurm.roles import PACKAGES

ARTIFACT = "packages"
"""Its name in the manifest."""
GROUPS = {role.value: packages for role, packages in PACKAGES.items()}


def make_bundle(
    *, output: Path, dpkg_status: Path, cache: Path, refresh: bool = False, say: Say = print
) -> PackageBundle:
    sources = _with_limits(find_sources(), dpkg_status=dpkg_status, cache=cache, refresh=refresh, say=say)
    return make_package_bundle(
        GROUPS, output=output, dpkg_status=dpkg_status, cache=cache, sources=sources, refresh=refresh, say=say
    )


def _with_limits(debian: Path, *, dpkg_status: Path, cache: Path, refresh: bool, say: Say) -> Path:
    """Return sources that also have the package of the limits; it is built for the Slurm that the archive has now."""

    def fetch(package: str) -> Path:
        say("Building the plug-in that limits jobs …")
        apt = Apt(cache / "apt", dpkg_status, debian)
        apt.run("update")
        return next(deb for deb in apt.fetch([package]) if package_name(deb) == package)

    return ensure_repository(cache, debian, fetch, refresh=refresh)
