"""The node records of slurmctld, read in three values, and the changes that the app may make to them.

A drain that the app made carries its own prefix in the reason. Any other drain is a person's (or Slurm's) and
is never undone here.
"""

import re
from dataclasses import dataclass
from typing import Literal

from gpuaas_sdk.machines.base import CommandResult, Machine, ObservedMachine
from gpuaas_sdk.runtime.receipts import NOTHING, ReceiptCheck
from slurm_app import names
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.slurm.config import STATE_SAVE
from slurm_app.slurm.script import quoted, step

OWN_PREFIX = "gpuaas:"
Seen = Literal["yes", "no", "unknown"]
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
# Exactly these words: IDLE+DRAIN or a node that does not answer (IDLE*) runs nothing.
USABLE = "(IDLE|MIXED|ALLOCATED|COMPLETING)([+](COMPLETING|DYNAMIC_NORM|PLANNED))*"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The record of one node in slurmctld; `present` is "unknown" where there is no clear answer."""

    present: Seen
    state: frozenset[str] = frozenset()
    responding: bool = False
    reason: str = ""
    reason_by: str = ""
    gpus: int = 0
    version: str = ""
    comment: str = ""

    @property
    def refused_by_slurm(self) -> bool:
        """slurmctld did not accept what slurmd reported. A drain that a person set is never this."""
        own_drain = "DRAIN" in self.state and self.reason_by == "slurm" and self.reason.startswith("gres/")
        return "INVALID_REG" in self.state or own_drain

    @property
    def drained_by_us(self) -> bool:
        return "DRAIN" in self.state and self.reason.startswith(OWN_PREFIX)

    @property
    def held_by_person(self) -> bool:
        """Drained or set down by somebody, for a reason of their own."""
        held = bool({"DRAIN", "DOWN", "FAIL"} & self.state)
        return held and bool(self.reason) and self.reason_by != "slurm" and not self.reason.startswith(OWN_PREFIX)

    @property
    def drained(self) -> Seen:
        """Nothing runs there and nothing will. A node that does not answer may still run jobs: that is unknown."""
        if self.present != "yes" or not self.responding:
            return "unknown"
        return "yes" if "DRAIN" in self.state and not _BUSY & self.state else "no"

    @property
    def usable(self) -> bool:
        """Jobs can start there."""
        return self.present == "yes" and self.responding and not {"DRAIN", "DOWN", "FAIL"} & self.state

    @property
    def words(self) -> str:
        if self.present != "yes":
            return {"no": "not there", "unknown": "unknown: slurmctld gives no answer"}[self.present]
        why = f" ({self.reason}, by {self.reason_by})" if self.reason else ""
        silent = "" if self.responding else ", does not answer"
        return "+".join(sorted(self.state)) + silent + why


def parse_node(host: str, result: CommandResult) -> NodeRecord:
    if result.ok and result.stdout.startswith(f"NodeName={host} "):
        return _parse_line(result.stdout.splitlines()[0])
    if "not found" in result.stdout + result.stderr:
        return NodeRecord("no")
    return NodeRecord("unknown")


def _parse_line(line: str) -> NodeRecord:
    def value(pattern: str) -> str:
        found = re.search(pattern, line)
        return found.group(1) if found else ""

    reason = re.search(r" Reason=(.*?) \[(\S+?)@\S+\]", line)
    why, who = reason.groups() if reason else ("", "")
    words = value(r" State=(\S+)").split("+")
    return NodeRecord(
        present="yes",
        state=frozenset(word.rstrip("*") for word in words if word),
        responding="NOT_RESPONDING" not in words and not any(word.endswith("*") for word in words),
        reason=why,
        reason_by=who,
        gpus=int(value(r" CfgTRES=\S*gres/gpu=(\d+)") or 0),
        version=value(r" Version=(\S+)"),
        comment=value(r" Comment=(\S+)"),
    )


async def read_node(controller: ObservedMachine, host: str) -> NodeRecord:
    command = f"timeout 10 scontrol --oneliner show node {quoted(names.host_name(host))}"
    return parse_node(host, await controller.read(command))


async def read_record_check(controller: ObservedMachine, host: str) -> ReceiptCheck:
    """Check for the receipt of a worker that its record, which is on the controller, is gone."""
    record = await read_node(controller, host)
    gone = {"no": True, "yes": False, "unknown": None}[record.present]
    return ReceiptCheck("node_record", f"scontrol show node {host}", NOTHING if gone else record.words, gone)


async def read_nodes(controller: ObservedMachine) -> dict[str, NodeRecord]:
    """Read all records, by name. Raise where slurmctld gives no answer: no list is not an empty list."""
    result = await controller.read("timeout 10 scontrol --oneliner show node")
    if not result.ok:
        said = (result.stderr or result.stdout).strip()
        raise NotReadyError("slurmctld_unknown", f"cannot read the nodes: slurmctld does not answer: {said}")
    lines = [line for line in result.stdout.splitlines() if line.startswith("NodeName=")]
    return {line.split(" ", 1)[0].removeprefix("NodeName="): _parse_line(line) for line in lines}


async def read_jobs(controller: ObservedMachine, host: str) -> list[str]:
    """Read the jobs that are on a node now, one line each: id, user, state, time used, name."""
    states = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED"
    command = (
        f"timeout 10 squeue --noheader --nodelist={quoted(names.host_name(host))} --states={states} "
        "--format='%A %u %T %M %j'"
    )
    result = await controller.read(command)
    if not result.ok:
        raise NotReadyError(
            "slurmctld_unknown", f"cannot read the jobs on {host}: slurmctld does not answer: {result.stderr.strip()}"
        )
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]


async def ensure_drain_asked(controller: Machine, host: str, *, why: str) -> NodeRecord:
    """Let no new jobs start there; those that run go on. A drain that is there already keeps its own reason."""
    host = names.host_name(host)
    reason = names.reason(f"{OWN_PREFIX} {why}")
    script = step(
        f"node() {{ timeout 10 scontrol --oneliner show node {host}; }}",
        "if node | grep -Eq ' State=[^ ]*DRAIN'; then exit 0; fi",
        f"timeout 10 scontrol update nodename={host} state=DRAIN reason={quoted(reason)}",
    )
    await controller.run_step(f"drain-{host}", script)
    return await read_node(controller, host)


async def ensure_jobs_cancelled_on(controller: Machine, host: str) -> None:
    """Kill them at once: without that, a job that ignores signals is left alone for KillWait, half a minute."""
    host = names.host_name(host)
    script = step(
        f"jobs=$(timeout 10 squeue --noheader --nodelist={host} --format=%A)",
        'if [ -z "$jobs" ]; then exit 0; fi',
        "timeout 20 scancel --quiet --signal=KILL --full $jobs || true",
        "timeout 20 scancel --quiet $jobs || true",
    )
    await controller.run_step(f"cancel-jobs-on-{host}", script)


async def ensure_set_down(controller: Machine, host: str, *, why: str) -> None:
    """Make slurmctld give up the jobs of a node that does not answer; whether their processes live is not known."""
    host = names.host_name(host)
    reason = names.reason(f"{OWN_PREFIX} {why}")
    await controller.run_step(
        f"set-down-{host}", step(f"timeout 10 scontrol update nodename={host} state=DOWN reason={quoted(reason)}")
    )


async def ensure_resumed(controller: Machine, host: str) -> NodeRecord:
    """Take back a drain of the app's own, and no other."""
    record = await read_node(controller, host)
    if record.present != "yes":
        raise NotReadyError("node_unknown", f"cannot resume {host}: its node record is {record.words}")
    refuse_held(host, record)
    if record.drained_by_us or ("DOWN" in record.state and record.reason.startswith(OWN_PREFIX)):
        script = step(
            f"node() {{ timeout 10 scontrol --oneliner show node {host}; }}",
            # Looked at again where it is done: somebody may have set another reason meanwhile.
            f"node | grep -q ' Reason={OWN_PREFIX}' || exit 0",
            f"timeout 10 scontrol update nodename={host} state=RESUME",
        )
        await controller.run_step(f"resume-{names.host_name(host)}", script)
    return await read_node(controller, host)


def refuse_held(host: str, record: NodeRecord) -> None:
    if record.held_by_person:
        raise RefusedError(
            "held_by_person",
            f"{record.reason_by} took {host} out of service ({record.reason!r}); the app does not undo that. "
            f"When it may be used again: scontrol update nodename={host} state=RESUME",
        )


async def ensure_node_saved(controller: Machine, host: str, *, comment: str) -> None:
    """Wait until the state file has the node's comment. slurmctld saves its records at most every five seconds; killed
    before that, it knows nothing of a new node, and the node's slurmd does not register a second time."""
    saved = f"grep --text --fixed-strings --quiet {quoted(names.comment(comment))} {STATE_SAVE}/node_state"
    script = step(f"wait_for 60 {quoted(f'slurmctld to write node {host} down')} {saved}")
    await controller.run_step(f"save-node-{names.host_name(host)}", script)


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


async def ensure_node_deleted(controller: Machine, host: str) -> dict[str, str]:
    """Delete a record whose slurmd was stopped before: otherwise the node comes back as a ghost."""
    result = await controller.run_step(f"delete-node-{names.host_name(host)}", step(delete_node_script(host)))
    return result.values
