"""Packages: what was there before, then exactly what the roles need, from the bundle and without a network."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuaas_sdk import DebianPackages, Machine
from gpuaas_sdk.owned.snapshot import SNAPSHOT
from slurm_app.errors import RefusedError
from slurm_app.slurm import owned
from slurm_app.slurm.config import SLURMCTLD_PORT, SLURMD_PORT, SLURMDBD_PORT
from slurm_app.slurm.owned import EVERYTHING, RECORD
from slurm_app.slurm.roles import Role
from slurm_app.slurm.script import BASELINE, PEOPLE_ONLY, quoted, step

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


# The slurm user is made here, with the uid that Debian reserves for it: Debian's own packages make it only
# when they are unpacked for the first time, so an install that was killed just then never gets one.
_SLURM_USER = """
    getent group slurm >/dev/null || groupadd --system --gid 64030 slurm
    getent passwd slurm >/dev/null || useradd --system --uid 64030 --gid slurm --home-dir /nonexistent \\
        --no-create-home --shell /usr/sbin/nologin slurm
"""
# Debian's purge would take all of /etc/slurm along, also what people put there; ours goes by its names.
# It also deletes the user munge, also one who was there before, and fails where that is a person.
_MEND = """
    mend_postrm slurm-wlm-basic-plugins 'rm -rf /etc/slurm$'
    mend_postrm munge 'deluser .* munge$'
"""
DEBIAN = DebianPackages(RECORD, tuple(role.value for role in Role), prepare=_SLURM_USER, before_purge=_MEND)


async def ensure_packages_installed(machine: Machine, bundle_digest: str, roles: Iterable[Role]) -> dict[str, str]:
    """Install what the roles need; return which packages were missing and how many were added since the baseline."""
    return await DEBIAN.ensure_installed(machine, bundle_digest, roles)
