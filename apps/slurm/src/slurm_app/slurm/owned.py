"""Names of everything that the app brings to a machine, for each role. Removal and probe read the same lists."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuaas_sdk import Belongings, MachineRecord
from slurm_app.slurm.roles import Role
from slurm_app.slurm.script import STATE_DIRECTORY


@dataclass(frozen=True, slots=True)
class RoleBelongings(Belongings):
    """Also what is only looked for, since it goes with the rest."""

    processes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


_ROLE: dict[Role, RoleBelongings] = {
    Role.WORKER: RoleBelongings(
        units=("slurmd.service",),
        processes=("slurmd", "slurmstepd"),
        ports=(6818,),
        trees=(
            "/etc/default/slurmd",
            "/etc/systemd/system/multi-user.target.wants/slurmd.service",
            "/etc/systemd/system/slurmd.service.d",
            "/var/lib/slurm/slurmd",
            "/var/spool/slurmd",
            "/run/gpuaas-slurm",
            "/run/slurm",
            "/run/slurmd",
            "/run/slurmd.pid",
        ),
        files=("/etc/cron.allow", "/etc/at.allow"),
    ),
    # Made by libibverbs1, and left by its purge.
    Role.MPI: RoleBelongings(users=("rdma",)),
    Role.CONTROLLER: RoleBelongings(
        units=("slurmctld.service", "slurmdbd.service", "slurm-mariadb.service"),
        processes=("slurmctld", "slurmdbd", "mariadbd"),
        users=("mysql",),
        ports=(6817, 6819, 3306),
        trees=(
            "/etc/default/slurmctld",
            "/etc/default/slurmdbd",
            "/etc/systemd/system/slurm-mariadb.service",
            "/etc/systemd/system/multi-user.target.wants/slurm-mariadb.service",
            "/etc/systemd/system/multi-user.target.wants/slurmctld.service",
            "/etc/systemd/system/multi-user.target.wants/slurmdbd.service",
            "/etc/systemd/system/slurmctld.service.d",
            "/etc/systemd/system/slurmdbd.service.d",
            "/var/lib/slurm/slurmctld",
            "/var/lib/mysql",
            "/var/lib/mysql.new",
            "/var/lib/mysql-files",
            "/var/spool/slurmctld",
            "/run/slurmctld",
            "/run/slurmdbd",
            "/run/slurmctld.pid",
            "/run/slurmdbd.pid",
            "/run/mysqld",
        ),
        files=(
            "/etc/slurm/slurm.conf",
            "/etc/slurm/cgroup.conf",
            "/etc/slurm/gres.conf",
            "/etc/slurm/plugstack.conf",
            "/etc/slurm/slurmdbd.conf",
            "/etc/mysql/slurm-mariadb.cnf",
        ),
        directories=("/etc/mysql",),
    ),
}
# What every role needs, so that it goes with the last one.
_SHARED = RoleBelongings(
    units=("munge.service",),
    processes=("munged",),
    users=("slurm", "munge"),
    trees=(
        "/etc/default/munge",
        "/etc/systemd/system/multi-user.target.wants/munge.service",
        "/var/lib/slurm",
        "/var/lib/slurm-llnl",
        "/var/lib/munge",
        "/var/spool/slurm",
        "/run/munge",
        # Left by a dpkg that was killed while it unpacked.
        "/var/lib/dpkg/tmp.ci",
    ),
    files=(
        "/etc/slurm/gres.machine.conf",
        "/etc/munge/munge.key",
        "/etc/munge/.munge.key.staged",
    ),
    directories=("/etc/slurm", "/etc/munge"),
)
EVERYTHING = _SHARED | _ROLE[Role.CONTROLLER] | _ROLE[Role.WORKER] | _ROLE[Role.MPI]
NEEDED_PARTS = ("baseline", "bundle")
"""Without these two nothing is removed: what was there before, and what the install was about to bring."""
RECORD = MachineRecord(STATE_DIRECTORY, EVERYTHING, parts=(*NEEDED_PARTS, "brought", "kept"))


def belongings(leaving: Iterable[Role], staying: Iterable[Role] = ()) -> RoleBelongings:
    """Everything that goes with these roles. Where no role stays, that includes roles that are unknown here."""
    if not set(staying):
        return EVERYTHING
    found = RoleBelongings()
    for role in sorted(set(leaving) - set(staying)):
        found |= _ROLE[role]
    return found


LOG_TREES = ("/var/log/slurm", "/var/log/munge", "/var/log/mysql", "/var/log/slurm-llnl")
# The platform's own: they keep a controller that lost its lease from changing the machine later.
FENCES = "/var/lib/gpuaas/fence"
