"""Configuration files as pure functions of names and facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gpuaas_sdk import MachineFacts
from slurm_app import names
from slurm_app.limits.package import DIRECTORY as LIMITS_DIRECTORY
from slurm_app.limits.package import EPILOG, PLUGIN, PROLOG
from slurm_app.slurm.facts import NodeShape
from slurm_app.slurm.overrides import checked_overrides

SLURMCTLD_PORT = 6817
SLURMD_PORT = 6818
SLURMDBD_PORT = 6819
STATE_SAVE = "/var/lib/slurm/slurmctld"
SLURMD_SPOOL = "/var/lib/slurm/slurmd"
LOGS = "/var/log/slurm"
DATABASE = "slurm_acct_db"
SLURMCTLD_DROP_IN = "/etc/systemd/system/slurmctld.service.d/gpuaas.conf"
SLURMDBD_DROP_IN = "/etc/systemd/system/slurmdbd.service.d/gpuaas.conf"
MACHINE_GRES_CONF = "/etc/slurm/gres.machine.conf"
PLUGSTACK_CONF = "/etc/slurm/plugstack.conf"
MAX_WORKERS = 256
SMALLEST_MEMORY_PER_CPU = 64
HEADER = "# Written by the GPUaaS Slurm app; changes made here are overwritten.\n"


@dataclass(frozen=True, slots=True)
class ProcessTracking:
    """How jobs are held together, and what that does and does not limit."""

    proctrack: str
    task_plugins: str
    cgroup_conf: str | None
    enforces: tuple[str, ...]

    @property
    def note(self) -> str:
        if self.enforces:
            return f"jobs are limited in: {', '.join(self.enforces)}"
        return "jobs are limited by the app's own plug-in; the condition LimitsEnforced says what was proven"


LINUXPROC = ProcessTracking("proctrack/linuxproc", "task/none", None, ())


def choose_process_tracking(facts: Sequence[MachineFacts], wanted: str = "auto") -> ProcessTracking:
    """Choose one setting for the whole cluster: the weakest machine decides, and a weaker worker is refused.

    Tried on unprivileged slices: slurmd makes its cgroups, but slurmstepd may not move a process into them
    (Permission denied) nor restrict devices (Operation not permitted), and no job starts.
    """
    if (
        wanted == "linuxproc"
        or not facts
        or any(each.own_user_namespace for each in facts)
        or len({each.cgroup for each in facts}) > 1
    ):
        return LINUXPROC
    conf = (
        f"{HEADER}CgroupPlugin=cgroup/{facts[0].cgroup}\n"
        "ConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainDevices=yes\n"
    )
    return ProcessTracking("proctrack/cgroup", "task/affinity,task/cgroup", conf, ("cores", "memory", "devices"))


def render_slurm_conf(
    *,
    cluster_name: str,
    partition: str,
    host: str,
    address: str,
    tracking: ProcessTracking,
    memory_per_cpu: int = SMALLEST_MEMORY_PER_CPU,
    overrides: Mapping[str, str] | None = None,
    limits: bool = True,
) -> str:
    """`limits`: the package of the limits is there; a version of the app from before it has a bundle without."""
    host, address = names.host_name(host), names.address(address)
    settings = [
        ("ClusterName", names.cluster_name(cluster_name)),
        ("SlurmctldHost", f"{host}({address})"),
        ("SlurmctldPort", str(SLURMCTLD_PORT)),
        ("SlurmdPort", str(SLURMD_PORT)),
        ("SlurmUser", "slurm"),
        ("AuthType", "auth/munge"),
        ("StateSaveLocation", STATE_SAVE),
        ("SlurmdSpoolDir", SLURMD_SPOOL),
        ("SlurmctldPidFile", "/run/slurmctld.pid"),
        ("SlurmdPidFile", "/run/slurmd.pid"),
        ("SlurmctldLogFile", f"{LOGS}/slurmctld.log"),
        ("SlurmdLogFile", f"{LOGS}/slurmd.log"),
        # Workers are dynamic nodes: no NodeName line ever, so adding one restarts nothing.
        ("MaxNodeCount", str(MAX_WORKERS)),
        # slurmd fetches its configuration from slurmctld: no copies to keep alike.
        ("SlurmctldParameters", "enable_configless"),
        ("GresTypes", "gpu"),
        ("SelectType", "select/cons_tres"),
        # Memory is given out like cores: the limit of a job is what it was given.
        ("SelectTypeParameters", "CR_Core_Memory"),
        ("DefMemPerCPU", str(max(memory_per_cpu, SMALLEST_MEMORY_PER_CPU))),
        # A job that no worker could ever run is refused, instead of waiting for ever.
        ("EnforcePartLimits", "ALL"),
        # Before the first step, not with it: what limits a job is there before anything of it runs.
        ("Prolog", PROLOG),
        ("Epilog", EPILOG),
        ("PrologFlags", "Alloc"),
        # The default memory follows the workers. slurmd has the configuration from slurmctld, as it was at its start.
        ("DebugFlags", "NO_CONF_HASH"),
        # Limits of the shell that submits say nothing about the worker.
        ("PropagateResourceLimits", "NONE"),
        ("ProctrackType", tracking.proctrack),
        ("TaskPlugin", tracking.task_plugins),
        ("JobAcctGatherType", "jobacct_gather/linux"),
        ("AccountingStorageType", "accounting_storage/slurmdbd"),
        # Addresses, not names, wherever Slurm takes them: a cluster must not depend on a name server.
        ("AccountingStorageHost", address),
        ("AccountingStoragePort", str(SLURMDBD_PORT)),
        ("AccountingStorageEnforce", "associations,limits"),
        ("AccountingStorageTRES", "gres/gpu"),
        # A batch job may otherwise wait 3 s for its first look, on a cluster that is idle. In its own first 3 s
        # slurmctld looks at none, except to fill gaps: with at most 256 workers that can be done every second.
        ("SchedulerParameters", "batch_sched_delay=0,bf_interval=1,bf_max_time=30"),
        # A machine that was restarted comes back by itself; a drain that a person set is not touched by this.
        ("ReturnToService", "2"),
        ("SlurmdTimeout", "60"),
        ("MpiDefault", "pmix"),
        # Without it slurmctld logs an error at start; there is no mail on these machines.
        ("MailProg", "/bin/true"),
    ]
    if not limits:
        settings = [(key, value) for key, value in settings if key not in {"Prolog", "Epilog", "PrologFlags"}]
    chosen = checked_overrides(overrides or {})
    if "SelectTypeParameters" in chosen:
        # CR_Core from before memory was given out: a job without an amount of memory would not be started.
        chosen["SelectTypeParameters"] = chosen["SelectTypeParameters"].removesuffix("_Memory") + "_Memory"
    for amount in ("DefMemPerCPU", "DefMemPerNode"):
        if amount in chosen:
            # Slurm takes one of the two.
            settings = [(key, value) for key, value in settings if key != "DefMemPerCPU" or amount == key]
    lines = [f"{key}={chosen.pop(key, value)}" for key, value in settings]
    lines += [f"{key}={value}" for key, value in sorted(chosen.items())]
    name = names.partition_name(partition)
    lines.append(f"PartitionName={name} Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return HEADER + "\n".join(lines) + "\n"


def render_plugstack_conf() -> str:
    """Handed out to all. `required`: where the plug-in is missing or fails, nothing of a job runs."""
    return f"{HEADER}required {PLUGIN}\n"


def render_slurmdbd_conf() -> str:
    """No password: the database knows the slurm user by its socket."""
    return HEADER + "\n".join(
        [
            "DbdHost=localhost",
            f"DbdPort={SLURMDBD_PORT}",
            "SlurmUser=slurm",
            "AuthType=auth/munge",
            f"LogFile={LOGS}/slurmdbd.log",
            "PidFile=/run/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=slurm",
            f"StorageLoc={DATABASE}",
            "",
        ]
    )


def render_gres_conf(gpus: Sequence[str], types: Sequence[str] = ()) -> str:
    """Render the GPUs of one worker, for the file on that worker: a line for each type, or one where it is unknown."""
    lines = []
    for kind, paths in _by_type(gpus, types).items():
        files = ",".join(names.gpu_device(path) for path in paths)
        lines.append(f"Name=gpu {f'Type={names.gpu_type(kind)} ' if kind else ''}File={files}\n")
    return HEADER + "".join(lines)


def _by_type(gpus: Sequence[str], types: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, kind in zip_longest(gpus, types[: len(gpus)], fillvalue=""):
        found.setdefault(kind, []).append(path)
    return found


def render_node_conf(shape: NodeShape, features: Sequence[str] = ()) -> str:
    """The value of `slurmd -Z --conf`. Port= is not allowed there, hence one slurmd per machine."""
    parts = [
        f"CPUs={shape.cpus}",
        f"Boards={shape.boards}",
        f"SocketsPerBoard={shape.sockets_per_board}",
        f"CoresPerSocket={shape.cores_per_socket}",
        f"ThreadsPerCore={shape.threads_per_core}",
        f"RealMemory={shape.memory_mib}",
    ]
    if shape.gpus:
        counted = _by_type(shape.gpus, shape.gpu_types).items()
        parts.append("Gres=" + ",".join(f"gpu:{f'{kind}:' if kind else ''}{len(paths)}" for kind, paths in counted))
    if features:
        parts.append(f"Feature={','.join(names.feature(feature) for feature in features)}")
    return " ".join(parts)


CHECK_LIMITS = f'ExecStartPre=/bin/sh -c "cd {LIMITS_DIRECTORY} && sha256sum --check --strict --quiet SHA256SUMS"\n'
"""A plug-in that is missing or not the bundle's keeps slurmd from starting: the node takes no jobs."""


def render_slurmd_unit(shape: NodeShape, *, conf_server: str, features: Sequence[str] = ()) -> str:
    """A drop-in of slurmd.service: a dynamic node that fetches its configuration.

    Debian's unit is silently skipped where there is no slurm.conf on the machine: hence the empty condition.
    """
    server = f"{names.address(conf_server)}:{SLURMCTLD_PORT}"
    return (
        f"{HEADER}[Unit]\nConditionPathExists=\nStartLimitIntervalSec=0\n"
        f"[Service]\n{CHECK_LIMITS if shape.limits else ''}ExecStart=\n"
        f'ExecStart=/usr/sbin/slurmd -D -s --conf-server {server} -Z --conf "{render_node_conf(shape, features)}"\n'
        "Restart=on-failure\nRestartSec=1\n"
    )
