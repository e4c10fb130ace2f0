"""The roles of machines, and the Debian packages that each role takes."""

from collections.abc import Iterable
from enum import StrEnum

from slurm_app.limits.package import PACKAGE as LIMITS


class Role(StrEnum):
    CONTROLLER = "controller"
    WORKER = "worker"
    MPI = "mpi"
    """Of a worker too, where the cluster was deployed with `mpi`."""


MEMORY_MIB = {Role.CONTROLLER: 900, Role.WORKER: 400}
"""The memory that a machine needs at least, for each role that it has."""


def memory_needed(roles: Iterable[Role]) -> int:
    return sum(MEMORY_MIB.get(role, 0) for role in roles)


# mariadb-server-core is the database program alone. The full mariadb-server brings its own set-up, a dozen
# more packages and questions at removal: 12.6 s against 4.8 s on the same slice, and leftovers after a purge.
PACKAGES: dict[Role, tuple[str, ...]] = {
    # The plug-in also where only srun and sbatch run: they read the same list of plug-ins as the workers.
    Role.CONTROLLER: (
        LIMITS,
        "libpmix2",
        "mariadb-client-core",
        "mariadb-server-core",
        "munge",
        "slurm-client",
        "slurmctld",
        "slurmdbd",
    ),
    Role.WORKER: (LIMITS, "libpmix2", "munge", "slurm-client", "slurmd"),
    # Open MPI, and the bindings with which a job can be tried without a compiler.
    Role.MPI: ("openmpi-bin", "python3-mpi4py"),
}
