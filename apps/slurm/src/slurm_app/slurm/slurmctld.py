"""slurmctld, and the node records in it."""

import os
import re
from dataclasses import dataclass
from typing import Literal

from gpuaas_sdk.machines.base import CommandError, CommandResult, Machine
from slurm_app import names
from slurm_app.slurm.config import ProcessTracking, render_slurm_conf
from slurm_app.slurm.script import put_file, quoted, restart_policy, step

CONFIGURATION = "/etc/slurm/slurm.conf"
CGROUP_CONF = "/etc/slurm/cgroup.conf"
DROP_IN = "/etc/systemd/system/slurmctld.service.d/gpuaas.conf"
SLURMDBD_DROP_IN = "/etc/systemd/system/slurmdbd.service.d/gpuaas.conf"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What slurmctld says of a node; `present` is "unknown" where it gives no clear answer."""

    present: Literal["yes", "no", "unknown"]
    state: frozenset[str]
    reason: str
    reason_by: str

    @property
    def refused_by_slurm(self) -> bool:
        """slurmctld did not accept what slurmd reported. A drain that a person set is never this."""
        own_drain = "DRAIN" in self.state and self.reason_by == "slurm" and self.reason.startswith("gres/")
        return "INVALID_REG" in self.state or own_drain


# The mpi/pmix plugin opens libpmix.so, which only the development package ships. One link makes --mpi=pmix
# work and keeps an error out of every daemon's log.
PMIX_LINK = """
for library in /usr/lib/*/pmix2/lib/libpmix.so.2; do
    if [ -e "$library" ]; then ln -sfn libpmix.so.2 "${library%.2}"; fi
done
"""


def configuration_script(
    *,
    cluster_name: str,
    partition: str,
    host: str,
    address: str,
    tracking: ProcessTracking,
) -> str:
    conf = render_slurm_conf(
        cluster_name=cluster_name, partition=partition, host=host, address=address, tracking=tracking
    )
    cgroup = put_file(CGROUP_CONF, tracking.cgroup_conf) if tracking.cgroup_conf else f"rm -f {CGROUP_CONF}"
    return step(
        PMIX_LINK,
        put_file(CONFIGURATION, conf),
        cgroup,
        # All drop-ins of the controller at once: one daemon-reload for all. slurmctld ends at once where
        # slurmdbd is not there yet, and slurmdbd without its database, which happens at every boot.
        f"mkdir -p {quoted(os.path.dirname(DROP_IN), os.path.dirname(SLURMDBD_DROP_IN))}",
        put_file(DROP_IN, restart_policy(["slurmdbd.service"])),
        put_file(SLURMDBD_DROP_IN, restart_policy(["slurm-mariadb.service"])),
    )


async def ensure_cluster_configured(
    machine: Machine,
    *,
    cluster_name: str,
    partition: str,
    tracking: ProcessTracking,
) -> None:
    """Before slurmdbd's clients are used: sacctmgr does not start without a slurm.conf."""
    script = configuration_script(
        cluster_name=cluster_name,
        partition=partition,
        host=machine.hostname,
        address=machine.address,
        tracking=tracking,
    )
    await machine.run_step("configure-cluster", script)


def start_script() -> str:
    return step(
        f"ensure_unit_current slurmctld.service {CONFIGURATION} {DROP_IN}",
        "up() { timeout 10 scontrol ping | grep -q 'is UP'; }",
        "wait_for 30 'slurmctld to answer' up",
        "slurmctld -V | sed 's/.* /slurmctld=/'",
    )


async def ensure_slurmctld_running(machine: Machine) -> dict[str, str]:
    result = await machine.run_step("start-slurmctld", start_script())
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)


async def read_configuration(controller: Machine) -> dict[str, str]:
    """The files that a worker needs a copy of, by path."""
    files: dict[str, str] = {}
    for path in (CONFIGURATION, CGROUP_CONF):
        result = await controller.read(f"if [ -e {path} ]; then cat {path}; fi")
        if not result.ok or (path == CONFIGURATION and not result.stdout):
            raise CommandError(f"read {path} of {controller.hostname}", result)
        if result.stdout:
            files[path] = result.stdout
    return files


def parse_node(host: str, result: CommandResult) -> NodeRecord:
    if result.ok and result.stdout.startswith(f"NodeName={host} "):
        state = re.search(r" State=(\S+)", result.stdout)
        reason = re.search(r" Reason=(.*?) \[(\S+?)@\S+\]", result.stdout)
        flags = frozenset(state.group(1).rstrip("*").split("+")) if state else frozenset()
        why, who = reason.groups() if reason else ("", "")
        return NodeRecord("yes", flags, why, who)
    if "not found" in result.stdout + result.stderr:
        return NodeRecord("no", frozenset(), "", "")
    return NodeRecord("unknown", frozenset(), "", "")


async def read_node(controller: Machine, host: str) -> NodeRecord:
    command = f"timeout 10 scontrol --oneliner show node {quoted(names.host_name(host))}"
    return parse_node(host, await controller.read(command))


def delete_node_script(host: str, *, seconds: int = 30) -> str:
    """slurmctld refuses while a job is on the node; that refusal is the failure of this step."""
    host = names.host_name(host)
    return "\n".join(
        [
            "if ! systemctl is-active --quiet slurmctld.service; then",
            "    echo 'node=unknown: slurmctld is not running'",
            "    exit 0",
            "fi",
            f"gone() {{ timeout 10 scontrol show node {host} 2>&1 | grep -q 'not found'; }}",
            # A job that was just cancelled may still be completing.
            f"deleted() {{ gone || timeout 10 scontrol delete nodename={host}; }}",
            f"wait_for {seconds} {quoted(f'the record of node {host} to be deleted')} deleted || exit 1",
            "echo node=deleted",
        ]
    )


async def ensure_node_deleted(controller: Machine, host: str) -> None:
    """Only after its slurmd was stopped, or the node comes back as a ghost."""
    await controller.run_step(f"delete-node-{names.host_name(host)}", step(delete_node_script(host)))
