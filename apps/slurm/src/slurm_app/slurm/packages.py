"""Packages: what was there before, then exactly what the roles need, from the bundle and without a network."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuaas_sdk.machines.base import COPIED_ARTIFACTS, CommandError, Machine
from gpuaas_sdk.owned.snapshot import SNAPSHOT
from slurm_app.errors import RefusedError
from slurm_app.slurm import owned
from slurm_app.slurm.config import SLURMCTLD_PORT, SLURMD_PORT, SLURMDBD_PORT
from slurm_app.slurm.dpkg import DPKG_FUNCTIONS, POLICY_FUNCTIONS
from slurm_app.slurm.owned import EVERYTHING, RECORD
from slurm_app.slurm.roles import Role
from slurm_app.slurm.script import BASELINE, PEOPLE_ONLY, quoted, step

DOES_NOT_FIT = 65
"""The exit status of an install whose packages miss something that the machine does not have: it changed nothing."""
PORTS = (SLURMCTLD_PORT, SLURMD_PORT, SLURMDBD_PORT)
FOREIGN_PACKAGES = re.compile(r"^(slurm|munge\b|mariadb-server|mysql-server|default-mysql-server)")
# The packages would run daemons as that person, or fail, and their removal would fail.
PEOPLE_NAMED_LIKE_DAEMONS = f"""
{PEOPLE_ONLY}
for name in {quoted(*owned.EVERYTHING.users)}; do
    {{ getent passwd "$name" || true; getent group "$name" || true; }} | people_only
done | sort -u | sed 's/^/person /'
"""
ANOTHER_NAME = "revoke all grants of that person and give them anew: the name is another one then"
# Whole trees: a file of somebody else's anywhere below would be in the way, or we in its.
FOREIGN_TREES = ("/etc/slurm", "/etc/slurm-llnl", "/etc/munge", "/var/lib/mysql", "/var/lib/slurm")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The machine as it was before the app touched it."""

    packages: frozenset[str]
    ports: frozenset[int]
    paths: frozenset[str]
    people: frozenset[str] = frozenset()
    """Accounts of people that have the name of one of the daemons."""


async def ensure_baseline_recorded(machine: Machine) -> Baseline:
    """Record it once, before anything else; a later run only reads it back. The names of what the app brings are
    recorded with it: those that were there already are left out, and `refuse_foreign` says which of them matter."""
    script = step(
        SNAPSHOT,
        'mkdir -p "$state"',
        'chmod 0700 "$state"',
        f"[ -d {BASELINE} ] || snapshot {BASELINE}",
        RECORD.bring_script(EVERYTHING, refuse=False),
        f"sed 's/^/package /' {BASELINE}/package_names",
        f"sed 's/^/port /' {BASELINE}/ports",
        f"for tree in {quoted(*FOREIGN_TREES)}; do",
        # The directories that contain what is named already would say nothing new.
        f"    grep -E \"^$tree(/|$)\" {BASELINE}/paths | tail -n 3 | sed 's/^/path /' || true",
        "done",
        PEOPLE_NAMED_LIKE_DAEMONS,
    )
    return parse_baseline((await machine.run_step("record-baseline", script)).stdout)


def parse_baseline(text: str) -> Baseline:
    values: dict[str, set[str]] = {"package": set(), "port": set(), "path": set(), "person": set()}
    for line in text.splitlines():
        kind, _, value = line.partition(" ")
        if kind in values and value:
            values[kind].add(value)
    return Baseline(
        packages=frozenset(values["package"]),
        ports=frozenset(int(port) for port in values["port"]),
        paths=frozenset(values["path"]),
        people=frozenset(values["person"]),
    )


def refuse_foreign(machine: Machine, baseline: Baseline) -> None:
    """Refuse a machine with another scheduler or database: leave it alone, change nothing."""
    found = sorted(name for name in baseline.packages if FOREIGN_PACKAGES.match(name))
    found += sorted(baseline.paths)
    found += [f"port {port}" for port in sorted(baseline.ports & set(PORTS))]
    found += [f"{name}, the account of a person ({ANOTHER_NAME})" for name in sorted(baseline.people)]
    if found:
        raise RefusedError(
            "machine_not_clean",
            f"cannot use {machine.hostname}: the cluster would collide with what is there: " + ", ".join(found),
        )


# The machine's own apt sources and lists are not touched: source, lists and cache are those of the bundle.
# Whether it has all that the machine lacks is asked of apt before the first change: a machine that the bundle was not
# made for is left as it was, and where nothing was installed before, without our record too.
# The slurm user is made here, with the uid that Debian reserves for it: Debian's own packages make it only
# when they are unpacked for the first time, so an install that was killed just then never gets one.
# The role lists come first in the bundle, so a run that finds nothing to do does not unpack it.
# apt says what is installed in which order, and dpkg does that at once: apt itself would look at every file once more,
# and run dpkg several times. While the packages are configured systemctl does not talk to systemd, which would
# otherwise read all its units anew for each daemon; that is done once, before the first of them starts.
#
# An install that was killed left packages in any state, and neither apt nor dpkg goes on from all of them. So apt is
# asked as if none of ours were there, and all that are not whole are unpacked again, and then configured. Packages
# that are not ours are neither repaired nor removed.
_INSTALL = f"""
refuse_bundle() {{
    rm -rf "$state/bundle.new" "$state/repository" "$state/apt"
    [ -d "$state/bundle" ] || rm -rf "$state"
    case $bundle in {COPIED_ARTIFACTS}/*) rm -rf {COPIED_ARTIFACTS} ;; esac
    exit {DOES_NOT_FIT}
}}
make_ready_for_dpkg() {{
    rm -f "$state/packages.done"
    trap 'allow_daemon_starts' EXIT
    forbid_daemon_starts
    getent group slurm >/dev/null || groupadd --system --gid 64030 slurm
    getent passwd slurm >/dev/null || useradd --system --uid 64030 --gid slurm --home-dir /nonexistent \\
        --no-create-home --shell /usr/sbin/nologin slurm
}}
# our_packages PATTERN: the names of those whose wanted and actual state it fits.
our_packages() {{
    dpkg-query -W -f '${{db:Status-Want}} ${{db:Status-Status}} ${{binary:Package}}\\n' |
        sed -En "s/^($1) //p" | sort | comm -13 {BASELINE}/package_names - | sed 's/:.*//' |
        sort -u | comm -12 - <(cat "$state/bundle.new/names" "$state/bundle/names" 2>/dev/null | sort -u)
}}
# For apt: without ours, and without what is broken and not ours, which it would want to repair.
status_without_ours() {{
    ours=$(our_packages '[^ ]+ [^ ]+') awk -v RS= -v ORS='\\n\\n' -F '\\n' '
        BEGIN {{ split(ENVIRON["ours"], names, "\\n"); for (i in names) ours["Package: " names[i]] }}
        !($1 in ours) && /\\nStatus: [a-z]+ ok (installed|config-files|triggers-[a-z]+)\\n/' /var/lib/dpkg/status
}}
# Lines of apt's simulation, "Inst NAME VERSION" and "Conf NAME VERSION", without the packages that are whole.
not_whole() {{
    local word name version state_of architecture
    local -A whole=()
    while read -r name version state_of architecture; do
        case $state_of:$architecture in
            installed:$native | triggers-*:$native | installed:all | triggers-*:all) whole[$name]=$version ;;
        esac
    done < <(dpkg-query -W -f '${{Package}} ${{Version}} ${{db:Status-Status}} ${{Architecture}}\\n')
    while read -r word name version; do
        [ "${{whole[$name]-}}" = "$version" ] || echo "$word $name"
    done
}}
# As many of a kind as follow each other are one run.
install_as_resolved() {{
    local word name packages=() doing=Inst
    while read -r word name; do
        [ -n "$word" ] || continue
        if [ "$word" != "$doing" ]; then
            run_batch "$doing" "${{packages[@]}}"
            packages=() doing=$word
        fi
        packages+=("$name")
    done
    run_batch "$doing" "${{packages[@]}}"
}}
run_batch() {{
    local doing=$1 name files=()
    shift
    [ $# -gt 0 ] || return 0
    if [ "$doing" = Conf ]; then
        SYSTEMD_OFFLINE=1 run_dpkg --force-confdef --force-confold --configure "$@"
        return
    fi
    for name in "$@"; do files+=("$state/repository/${{name%%:*}}"_*.deb); done
    SYSTEMD_OFFLINE=1 run_dpkg --force-confdef --force-confold --no-triggers --unpack "${{files[@]}}"
}}
rm -rf "$state/bundle.new"
mkdir -p "$state/bundle.new"
tar -xf "$bundle" -C "$state/bundle.new" --no-same-owner --occurrence=1 names "${{needs[@]}}" "${{roles[@]}}" || {{
    echo 'the artifact is not a file that slurm-app bundle has made' >&2
    refuse_bundle
}}
missing=$(cd "$state/bundle.new" && sort -u "${{roles[@]}}" | while read -r package; do
    [ "$(dpkg-query -W -f '${{db:Status-Status}}' "$package" 2>/dev/null)" = installed ] || echo "$package"
done)
began_before="" broken=""
if [ -d "$state/bundle" ] && {{ [ -n "$missing" ] || [ ! -e "$state/packages.done" ]; }}; then
    began_before=yes
    make_ready_for_dpkg
    finish_triggers
    # One that was on its way out, and is not needed, is left to the removal.
    broken=$(our_packages 'install (half-installed|unpacked|half-configured)')
fi
if [ -n "$missing$broken" ]; then
    rm -rf "$state/repository" "$state/apt"
    mkdir -p "$state/repository" "$state/apt/lists/partial" "$state/apt/archives/partial"
    tar -xf "$bundle" -C "$state/repository" --no-same-owner --occurrence=1 Packages
    echo "deb [trusted=yes] file:$state/repository ./" >"$state/apt/sources.list"
    status_without_ours >"$state/apt/status"
    options=(
        -o Dir::Etc::sourcelist="$state/apt/sources.list" -o Dir::Etc::sourceparts=-
        -o Dir::State::status="$state/apt/status"
        -o Dir::State::lists="$state/apt/lists" -o Dir::Cache::archives="$state/apt/archives"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
        -o APT::Sandbox::User=root -o APT::Install-Recommends=false
    )
    apt-get -qq "${{options[@]}}" update
    if ! found=$(apt-get "${{options[@]}}" install --simulate --yes --no-remove $missing $broken 2>&1); then
        tail -n 20 <<<"$found" >&2
        case $found in *'held broken packages'* | *'Unable to locate'* | *'no installation candidate'* | \\
            *'remove is disabled'*) refuse_bundle ;; esac
        exit 1
    fi
    native=$(dpkg --print-architecture)
    resolved=$(sed -En 's/^(Inst|Conf) ([^ ]+) (\\[[^]]*\\] )?\\(([^ ]+) .*/\\1 \\2 \\4/p' <<<"$found" | not_whole)
    files=$(sed -n 's/^Inst //p' <<<"$resolved" | sed 's/:.*//; s/.*/&_*.deb/')
    if [ -n "$files" ]; then
        tar -xf "$bundle" -C "$state/repository" --no-same-owner --wildcards --files-from=<(echo "$files")
    fi
fi
if [ -d "$state/bundle" ]; then mv -f "$state/bundle.new"/* "$state/bundle/" && rmdir "$state/bundle.new"
else mv "$state/bundle.new" "$state/bundle"; fi
if [ -n "$missing$broken" ]; then
    [ -n "$began_before" ] || make_ready_for_dpkg
    touch "$state/reload"
    install_as_resolved <<<"$resolved"
fi
if [ -n "$began_before" ]; then finish_triggers; fi
if [ ! -e "$state/packages.done" ]; then
    allow_daemon_starts
    rm -rf "$state/repository" "$state/apt"
    touch "$state/packages.done"
fi
echo "missing=$(echo $missing)"
echo "added=$(dpkg-query -W -f '${{binary:Package}}\n' | sort | comm -13 {BASELINE}/package_names - | wc -l)"
"""


def install_script(bundle_path: str, roles: Iterable[Role]) -> str:
    return step(
        POLICY_FUNCTIONS,
        DPKG_FUNCTIONS,
        f"[ -d {BASELINE} ] || {{ echo 'no baseline was recorded' >&2; exit 1; }}",
        f"bundle={quoted(bundle_path)}",
        f"roles=({' '.join(f'role-{role.value}' for role in sorted(roles))})",
        f"needs=({' '.join(f'needs-{role.value}' for role in sorted(Role))})",
        _INSTALL,
    )


async def ensure_packages_installed(machine: Machine, bundle_digest: str, roles: Iterable[Role]) -> dict[str, str]:
    """Install what the roles need; return which packages were missing and how many were added since the baseline."""
    path = await machine.deliver(bundle_digest)
    try:
        result = await machine.run_step("install-packages", install_script(path, roles), timeout=600)
    except CommandError as error:
        if error.result.exit_status != DOES_NOT_FIT:
            raise
        raise RefusedError(
            "bundle_does_not_fit",
            f"the packages were not made for the image of {machine.hostname}, and nothing was changed on it; make them "
            f"anew with its dpkg status and publish a version with them: {error.result.stderr.strip()[-1_000:]}",
        ) from error
    if "added" not in result.values:
        raise CommandError("install the packages", result)
    return result.values
