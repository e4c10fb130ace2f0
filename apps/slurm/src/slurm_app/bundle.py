"""`slurm-app bundle`: the Debian packages of all roles, as one file."""

from pathlib import Path

from gpuaas_sdk import PackageBundle, make_package_bundle
from gpuaas_sdk.bundles.building import Say
from slurm_app.slurm.roles import PACKAGES

ARTIFACT = "packages"
"""Its name in the manifest."""
GROUPS = {role.value: packages for role, packages in PACKAGES.items()}


def make_bundle(
    *, output: Path, dpkg_status: Path, cache: Path, refresh: bool = False, say: Say = print
) -> PackageBundle:
    return make_package_bundle(GROUPS, output=output, dpkg_status=dpkg_status, cache=cache, refresh=refresh, say=say)
