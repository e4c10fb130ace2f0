"""Names of packages and of groups of them: checked before apt or a shell reads one."""

import re

from gpuaas_sdk.bundles.errors import BundleError

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,126}[a-z0-9+.]", re.ASCII)
_GROUP = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)


def check_package(name: str) -> None:
    # apt takes a name that ends with a hyphen for one to remove, and one that begins with it for an option.
    if not isinstance(name, str) or not _PACKAGE.fullmatch(name):
        raise BundleError(
            "bad_package_name",
            f"{name!r} is not the name of a Debian package: small letters, digits and + - . alone, two characters or "
            "more",
        )


def check_group(name: str) -> None:
    if not isinstance(name, str) or not _GROUP.fullmatch(name):
        raise BundleError("bad_group_name", f"{name!r} is not the name of a group: a letter, then letters, digits, _ -")
