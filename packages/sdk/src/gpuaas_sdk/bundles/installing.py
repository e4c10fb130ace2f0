"""The packages of a bundle on a machine: installed without a network, and removed again with all that they own."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from gpuaas_sdk.bundles.names import check_group
from gpuaas_sdk.machines.base import COPIED_ARTIFACTS, CommandError, Machine
from gpuaas_sdk.owned.belongings import Belongings
from gpuaas_sdk.owned.record import MachineRecord
from gpuaas_sdk.owned.snapshot import SNAPSHOT
from gpuaas_sdk.runtime.errors import OperationFailed

DOES_NOT_FIT = 65
"""The exit status of an install whose packages miss something that the machine does not have: it changed nothing."""
INSTALL_SECONDS = 600
POLICY = "/usr/sbin/policy-rc.d"
# Files of the system itself that an installation of anything writes; they hold nothing of a package's once it is gone.
# Patterns of `case`, each with its reason.
SYSTEM_PATHS: dict[str, str] = {
    "/etc/.pwd.lock": "lock of useradd",
    "/etc/ld.so.cache": "rebuilt by ldconfig",
    "/etc/passwd-": "the previous version, kept by useradd",
    "/etc/shadow-": "the previous version, kept by useradd",
    "/etc/group-": "the previous version, kept by groupadd",
    "/etc/gshadow-": "the previous version, kept by groupadd",
    "/etc/subuid-": "the previous version, kept by useradd",
    "/etc/subgid-": "the previous version, kept by useradd",
    "/var/cache/apt/*": "cache of apt",
    "/var/cache/debconf/*": "cache of debconf",
    "/var/cache/ldconfig/*": "cache of ldconfig",
    "/var/lib/dpkg/*-old": "the previous version, kept by dpkg",
    "/var/lib/dpkg/lock*": "lock of dpkg",
    "/var/lib/dpkg/updates/*": "journal of dpkg",
    "/var/lib/systemd/random-seed": "written by systemd at any time",
    "/var/lib/systemd/timers/*": "written by systemd at any time",
    "/var/lib/ucf/hashfile*": "registry of ucf",
}
SYSTEM_PATH = f"system_path() {{ case $1 in {'|'.join(SYSTEM_PATHS)}) return 0 ;; *) return 1 ;; esac; }}\n"
_OF_OURS = (
    'while read -r name rest; do if leaving_packages | grep -Fxq "${name%%:*}"; then echo "$name $rest"; fi; done'
)
_NOT_BEFORE = 'not_before() { sort -u | comm -23 - "$baseline/$1"; }\n'


def _load(name: str) -> str:
    text = (files(__package__) / name).read_text()
    # Comments are for the reader here, not for the wire.
    return "\n".join(line for line in text.splitlines() if line and not line.lstrip().startswith("#")) + "\n"


_DPKG, _INSTALL, _PURGE = _load("dpkg.sh"), _load("install.sh"), _load("purge.sh")


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """The packages of one app on its machines, from the bundle that `make_package_bundle` made.

    The record of the app needs the parts `baseline` and `bundle`: what the machine had before, and which packages are
    the app's.
    """

    record: MachineRecord
    groups: tuple[str, ...]
    """All groups of the bundle."""
    prepare: str = ":"
    """Bash that runs just before dpkg begins, for example to make a user with a fixed number."""
    before_purge: str = ":"
    """Bash that runs just before the packages are purged. `mend_postrm PACKAGE PATTERN` there takes a line out of a
    package's script, which would remove what is not its own."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("cannot install packages: name the groups of the bundle")
        for group in self.groups:
            check_group(group)
        if missing := {"baseline", "bundle"} - set(self.record.parts):
            raise ValueError(f"cannot install packages: the record lacks the part {sorted(missing)[0]}")

    @property
    def head(self) -> str:
        """The bash in front of everything here."""
        directory = self.record.directory
        mark = re.sub(r"[^A-Za-z0-9-]", "-", directory.rpartition("/")[2])
        return (
            f"export LC_ALL=C\nstate={directory}\nbaseline={directory}/baseline\nowned={directory}/owned_paths\n"
            f"mark={mark}\npolicy={POLICY}\n{_DPKG}"
        )

    # Before the first change

    async def ensure_baseline_recorded(self, machine: Machine, names: Belongings) -> None:
        """Take the snapshot of the machine once, before anything else, and record the names that the app brings."""
        await machine.run_step("record-baseline", self.baseline_script(names))

    def baseline_script(self, names: Belongings) -> str:
        return (
            f"{self.head}{SNAPSHOT}\n"
            'mkdir -p "$state"\nchmod 0700 "$state"\n[ -d "$baseline" ] || snapshot "$baseline"\n'
            f"{self.record.bring_script(names)}"
        )

    # Install

    async def ensure_installed(self, machine: Machine, digest: str, groups: Iterable[str]) -> dict[str, str]:
        """Deliver the bundle and install the packages of these groups; what is installed stays as it is. Return which
        were `missing`, and how many packages were `added` since the snapshot.

        No daemon is started by its package. Fails with `bundle_does_not_fit`, and nothing changed, where the bundle was
        made for another image."""
        script = self.install_script(await machine.deliver(digest), groups)
        try:
            result = await machine.run_step("install-packages", script, timeout=INSTALL_SECONDS)
        except CommandError as error:
            if error.result.exit_status != DOES_NOT_FIT:
                raise
            raise OperationFailed(
                "bundle_does_not_fit",
                f"the packages were not made for the image of {machine.hostname}, and nothing was changed on it; make "
                "them anew with its dpkg status and publish a version with them: "
                f"{error.result.stderr.strip()[-1_000:]}",
            ) from error
        if "added" not in result.values:
            raise CommandError("install the packages", result)
        return result.values

    def install_script(self, path: str, groups: Iterable[str]) -> str:
        wanted = sorted(set(groups))
        self._require(wanted)
        return (
            f"{self.head}[ -d \"$baseline\" ] || {{ echo 'no baseline was recorded' >&2; exit 1; }}\n"
            f"bundle={shlex.quote(path)}\ncopied={COPIED_ARTIFACTS}\ndoes_not_fit={DOES_NOT_FIT}\n"
            f"roles=({' '.join(f'role-{group}' for group in wanted)})\n"
            f"needs=({' '.join(f'needs-{group}' for group in sorted(self.groups))})\n"
            f"prepare_for_packages() {{\n{self.prepare}\n}}\n{_INSTALL}"
        )

    # Removal

    async def ensure_removed(
        self, machine: Machine, names: Belongings, leaving: Iterable[str] = (), staying: Iterable[str] = ()
    ) -> dict[str, str]:
        """Purge the packages that only the groups in `leaving` need, all of them where no group stays; then remove the
        app's other names, and what the packages left. Without a record, nothing."""
        script = self.remove_script(names, leaving, staying)
        return (await machine.run_step("remove-packages", script, timeout=INSTALL_SECONDS)).values

    def remove_script(self, names: Belongings, leaving: Iterable[str] = (), staying: Iterable[str] = ()) -> str:
        functions = self.removal_functions(leaving, staying)
        copies = "" if set(staying) else f'if [ -d "$baseline" ]; then rm -rf {COPIED_ARTIFACTS}; fi\n'
        return (
            f"{functions}{copies}"
            'if [ ! -d "$baseline" ] || [ ! -d "$state/bundle" ]; then\n'
            "    echo 'skipped=nothing was installed here by the app'\n    exit 0\nfi\n"
            f"{self.record.functions(names)}hold_record\nensure_listed\nrelease_record\nremove_units\npurge_packages\n"
            "remove_paths\nremove_users\nremove_package_paths\nremove_directories\nsystemctl daemon-reload\n"
        )

    def removal_functions(self, leaving: Iterable[str] = (), staying: Iterable[str] = ()) -> str:
        """The functions `purge_packages` and `remove_package_paths`, for a script of the app's own."""
        goes, stays = sorted(set(leaving)), sorted(set(staying))
        self._require([*goes, *stays])
        return (
            f"{self.head}{SYSTEM_PATH}"
            f"leaving='{' '.join(f'needs-{group}' for group in goes)}' "
            f"staying='{' '.join(f'needs-{group}' for group in stays)}'\n"
            f"mend_before_purge() {{\n{self.before_purge}\n}}\n{_PURGE}"
        )

    def checks(self, leaving: Iterable[str] = (), staying: Iterable[str] = ()) -> dict[str, str]:
        """Checks for `MachineRecord.prove_removed`: the packages that are left, and what is left of them."""
        functions = f"{self.removal_functions(leaving, staying)}{_NOT_BEFORE}"
        return {
            "packages": f"{functions}[ ! -d \"$state/bundle\" ] || dpkg-query -W -f '${{binary:Package}}\\n' | "
            f"not_before package_names | {_OF_OURS}",
            "package_paths": f"{functions}"
            'if [ -e "$owned" ]; then while read -r path; do '
            'if { [ -e "$path" ] || [ -L "$path" ]; } && ! system_path "$path" && '
            '! { [ -d "$path" ] && [ -n "$(ls -A "$path")" ]; }; then echo "$path"; fi; '
            'done < <(not_before paths <"$owned"); fi',
            "policy_rc_d": f'{functions}grep -ls "$mark" "$policy" || true',
        }

    def _require(self, groups: Iterable[str]) -> None:
        unknown = [group for group in groups if group not in self.groups]
        if unknown:
            raise ValueError(f"the bundle has no group {unknown[0]!r}; it has {', '.join(self.groups)}")
