"""slurmctld and its configuration, which it hands out to every worker."""

import os
from collections.abc import Mapping

from gpuaas_sdk.machines.base import CommandError, CommandResult, Machine
from slurm_app.limits.package import PACKAGE as LIMITS
from slurm_app.slurm.config import (
    HEADER,
    MACHINE_GRES_CONF,
    PLUGSTACK_CONF,
    SLURMCTLD_DROP_IN,
    SLURMDBD_DROP_IN,
    ProcessTracking,
    render_plugstack_conf,
    render_slurm_conf,
)
from slurm_app.slurm.quick_route import RESTORE_ROUTE
from slurm_app.slurm.script import PMIX_LINK, put_file, quoted, restart_policy, step

CONFIGURATION = "/etc/slurm/slurm.conf"
CGROUP_CONF = "/etc/slurm/cgroup.conf"
GRES_CONF = "/etc/slurm/gres.conf"


def configuration_script(
    *,
    cluster_name: str,
    partition: str,
    host: str,
    address: str,
    tracking: ProcessTracking,
    overrides: Mapping[str, str],
    memory_per_cpu: int,
    limits: bool = True,
    of_slurmd: str = "",
) -> str:
    """`of_slurmd`: what a worker on the same machine needs."""
    conf = render_slurm_conf(
        cluster_name=cluster_name,
        partition=partition,
        host=host,
        address=address,
        tracking=tracking,
        memory_per_cpu=memory_per_cpu,
        overrides=overrides,
        limits=limits,
    )
    cgroup = put_file(CGROUP_CONF, tracking.cgroup_conf) if tracking.cgroup_conf else f"rm -f {CGROUP_CONF}"
    return step(
        PMIX_LINK,
        put_file(CONFIGURATION, conf),
        put_file(PLUGSTACK_CONF, render_plugstack_conf()) if limits else "",
        cgroup,
        # Handed out to all, and read by each from its own disk: so every machine has the GPUs that it has, and
        # adding one needs no reconfigure, at which 22.05.8 loses the dynamic nodes ("lookup failure for node").
        put_file(GRES_CONF, f"{HEADER}Include {MACHINE_GRES_CONF}\n"),
        f"[ -e {MACHINE_GRES_CONF} ] || {put_file(MACHINE_GRES_CONF, HEADER)}",
        # All drop-ins of the controller at once: one daemon-reload for all. slurmctld ends at once where
        # slurmdbd is not there yet, and slurmdbd without its database, which happens at every boot.
        f"mkdir -p {quoted(os.path.dirname(SLURMCTLD_DROP_IN), os.path.dirname(SLURMDBD_DROP_IN))}",
        put_file(SLURMCTLD_DROP_IN, restart_policy(["slurmdbd.service"])),
        put_file(SLURMDBD_DROP_IN, restart_policy(["slurm-mariadb.service"])),
        of_slurmd,
    )


async def ensure_cluster_configured(
    machine: Machine,
    *,
    cluster_name: str,
    partition: str,
    tracking: ProcessTracking,
    overrides: Mapping[str, str],
    memory_per_cpu: int,
    of_slurmd: str = "",
) -> None:
    """Write the configuration before slurmdbd's clients are used: sacctmgr does not start without a slurm.conf."""
    script = configuration_script(
        cluster_name=cluster_name,
        partition=partition,
        host=machine.hostname,
        address=machine.address,
        tracking=tracking,
        overrides=overrides,
        memory_per_cpu=memory_per_cpu,
        limits=await read_limits_installed(machine),
        of_slurmd=of_slurmd,
    )
    await machine.run_step("configure-cluster", script)


async def read_limits_installed(machine: Machine) -> bool:
    """No answer is not a no: a cluster must not come up without limits because a machine was slow."""
    result = await machine.read(f"dpkg-query -W -f '${{db:Status-Status}}\\n' {LIMITS} 2>/dev/null || echo absent")
    said = result.stdout.strip()
    if not result.ok or not said:
        raise CommandError(f"read which packages {machine.hostname} has", result)
    return said == "installed"


def start_script() -> str:
    return step(
        f"ensure_unit_current slurmctld.service {CONFIGURATION} {SLURMCTLD_DROP_IN}",
        "up() { timeout 10 scontrol ping | grep -q 'is UP'; }",
        "wait_for 30 'slurmctld to answer' up",
        RESTORE_ROUTE,
        "slurmctld -V | sed 's/.* /slurmctld=/'",
    )


async def read_tracking(controller: Machine) -> str:
    """Read how the cluster tracks processes, which every worker must support; empty where it is not configured yet."""
    result: CommandResult = await controller.read(f"sed -n 's/^ProctrackType=//p' {CONFIGURATION} 2>/dev/null || true")
    return result.stdout.strip()


async def ensure_slurmctld_running(machine: Machine) -> dict[str, str]:
    result = await machine.run_step("start-slurmctld", start_script())
    return result.values
