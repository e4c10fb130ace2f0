"""By exact name: what the app brings to a machine. Removal and probe read the same lists."""

UNITS = (
    "slurmd.service",
    "slurmctld.service",
    "slurmdbd.service",
    "slurm-mariadb.service",
    "munge.service",
)
PROCESSES = ("slurmd", "slurmstepd", "slurmctld", "slurmdbd", "mariadbd", "munged")
USERS = ("slurm", "munge", "mysql")
PORTS = (6817, 6818, 6819, 3306)

# Whole trees; a tree that was there before the app came is never removed.
TREES = (
    "/etc/slurm",
    "/etc/munge",
    "/etc/mysql",
    "/etc/default/slurmd",
    "/etc/default/slurmctld",
    "/etc/default/slurmdbd",
    "/etc/default/munge",
    "/etc/systemd/system/slurm-mariadb.service",
    "/etc/systemd/system/multi-user.target.wants/slurm-mariadb.service",
    "/etc/systemd/system/slurmd.service.d",
    "/etc/systemd/system/slurmctld.service.d",
    "/etc/systemd/system/slurmdbd.service.d",
    "/var/lib/slurm",
    "/var/lib/slurm-llnl",
    "/var/lib/munge",
    "/var/lib/mysql",
    "/var/lib/mysql.new",
    "/var/lib/mysql-files",
    "/var/spool/slurm",
    "/var/spool/slurmd",
    "/var/spool/slurmctld",
    "/run/slurm",
    "/run/slurmd",
    "/run/slurmctld",
    "/run/slurmdbd",
    "/run/slurmd.pid",
    "/run/slurmctld.pid",
    "/run/slurmdbd.pid",
    "/run/munge",
    "/run/mysqld",
)
LOG_TREES = ("/var/log/slurm", "/var/log/munge", "/var/log/mysql", "/var/log/slurm-llnl")

# Files of the system itself that an installation of anything writes; they hold nothing of ours once the
# packages are gone. Patterns of `case`, each with its reason.
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
