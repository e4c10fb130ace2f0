"""The proof that limits hold: a job of an ordinary user that looks at its own limits, and then breaks that of memory.

Its output counts, not its exit status: a job that could not be launched can look like one that succeeded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuaas_contract.instances import ConditionStatus
from gpuaas_sdk import ObservedMachine, parse_values
from slurm_app import names
from slurm_app.limits.package import DIRECTORY, EPILOG, PLUGIN, PROLOG
from slurm_app.slurm.config import PLUGSTACK_CONF
from slurm_app.slurm.script import quoted

JOB_NAME = "over-limit"
"""Whoever lists jobs sees by its name why this one failed: it is ended by the limit that it tries."""
MEMORY_MIB = 64
ABSENT = "absent"
PARTS = ("memory", "processes", "CPUs", "GPUs", "temporary files", "set-uid programs", "user managers")
"""Each is proven, or named in the condition."""
CONDITION = "LimitsEnforced"
NEXT = "Recover the worker to try it again"

# Each line names the worker, the part, and yes or no. The last part is memory: what comes after it is not reached.
_PROBE = f"""
host=$(hostname)
say() {{ if [ "$1" = 0 ]; then echo "limit=$host yes $2"; else echo "limit=$host no $2"; fi; }}
# group CONTROLLER: the file system path of the group that this process is in.
group() {{
    local path
    path=$(sed -n "s#^[0-9]*:$1:##p" /proc/self/cgroup)
    if [ -z "$path" ]; then echo "/sys/fs/cgroup$(sed -n 's#^0::##p' /proc/self/cgroup)"
    elif [ -e "/sys/fs/cgroup/$1$path/cgroup.procs" ]; then echo "/sys/fs/cgroup/$1$path"
    else echo "/run/gpuaas-slurm/$1$path"; fi
}}
limited() {{ grep -Eqs '^[1-9][0-9]*( |$)' "$@"; }}
limited "$(group pids)/pids.max"; say $? processes
limited "$(group cpu)/cpu.cfs_quota_us" "$(group cpu)/cpu.max"; say $? CPUs
seen=0
for device in /dev/nvidia[0-9]*; do if [ -c "$device" ]; then seen=1; fi; done
say $seen GPUs
private() {{ grep -q " $1 [^-]* - tmpfs " /proc/self/mountinfo; }}
private /tmp && private /dev/shm; say $? 'temporary files'
grep -q '^NoNewPrivs:[^0-9]*1$' /proc/self/status; say $? 'set-uid programs'
[ -z "$(ls -A /run/user 2>/dev/null)" ]; say $? 'user managers'
echo "limit=$host tries memory"
head -c {4 * MEMORY_MIB}M /dev/zero | tail >/dev/null
sleep 1
echo "limit=$host no memory"
"""


def probe_script(*, where: str, nodes: str) -> str:
    """A piece of the first job's script: `as_user` is there. It never fails, since what it says is what counts."""
    return f"""
if ! grep -qs {quoted(f"^required {PLUGIN}$")} {PLUGSTACK_CONF}; then
    echo 'limit={ABSENT}'
else
    as_user srun {where} {nodes} --job-name={JOB_NAME} --mem={MEMORY_MIB}M --gres=none \
        bash -c {quoted(_PROBE)} 2>/dev/null </dev/null || true
fi
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """True: all parts of all workers were proven. None: some were not, and none was found open."""

    holds: bool | None
    reason: str
    message: str

    @property
    def status(self) -> ConditionStatus:
        return {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[self.holds]


EARLIER = Verdict(
    False,
    "DeployedBefore",
    "this cluster was deployed by a version of the app without limits: nothing limits the memory, processors or GPUs "
    "that a job really uses. Decommission it and deploy it anew to get them",
)


def judge(text: str, workers: Sequence[str]) -> Verdict:
    said = parse_values(text).get("limit", [])
    if said == [ABSENT]:
        return EARLIER
    opened, unproven = [], []
    for host in workers:
        found = dict(_parse(said, host))
        # Killed while it tried: that is what the limit of memory does.
        if found.get("memory") == "tries":
            found["memory"] = "yes"
        wrong = [part for part in PARTS if found.get(part) == "no"]
        missing = [part for part in PARTS if part not in found]
        if wrong:
            opened.append(f"{host}: {', '.join(wrong)}")
        if missing:
            unproven.append(f"{host}: {', '.join(missing)}")
    return _verdict(opened, unproven)


def _parse(said: Iterable[str], host: str) -> Iterable[tuple[str, str]]:
    for line in said:
        name, answer, part = re.fullmatch(r"(\S+) (yes|no|tries) (.+)|.*", line).groups()  # type: ignore[union-attr]
        if name == host:
            yield part, answer


def _verdict(opened: Sequence[str], unproven: Sequence[str]) -> Verdict:
    tail = f"; not proven: {'; '.join(unproven)}" if unproven else ""
    if opened:
        return Verdict(False, "NotEnforced", f"a job of an ordinary user was not limited in {'; '.join(opened)}{tail}")
    if unproven:
        return Verdict(None, "NotProven", f"no job of an ordinary user has shown it on {'; '.join(unproven)}. {NEXT}")
    return Verdict(True, "ProvenByJob", f"a job of an ordinary user was limited in {', '.join(PARTS)}")


def busy(host: str) -> Verdict:
    return Verdict(None, "NotProven", f"jobs of others run on {host}, so that none was run to prove it. {NEXT}")


# Between jobs only the files can be looked at: an observer runs none.

_CONTROLLER = f"""
grep -qsx {quoted(f"required {PLUGIN}")} {PLUGSTACK_CONF} && echo plugin=yes || true
grep -qsx {quoted(f"Prolog={PROLOG}")} /etc/slurm/slurm.conf && echo prolog=yes || true
grep -qsx {quoted(f"Epilog={EPILOG}")} /etc/slurm/slurm.conf && echo epilog=yes || true
ls -d {DIRECTORY} 2>/dev/null | sed 's/^/files=/' || true
"""
_WORKER = f"(cd {DIRECTORY} && sha256sum --check --strict --quiet SHA256SUMS) >/dev/null 2>&1 && echo whole=yes || true"


async def read_configured(controller: ObservedMachine) -> Verdict | None:
    """Return what is wrong with the controller's part; None where it is as it should be."""
    result = await controller.read(_CONTROLLER)
    if not result.ok:
        return Verdict(None, "NotObserved", f"cannot look at the configuration: {result.stderr.strip()[:300]}")
    values = result.values
    if not values:
        return EARLIER
    missing = [part for part in ("plugin", "prolog", "epilog") if part not in values]
    if missing:
        words = f"the controller's configuration no longer has the {', '.join(missing)} that limit jobs"
        return Verdict(False, "ConfigurationChanged", f"{words}. Decommission it and deploy it anew")
    return None


async def read_whole(worker: ObservedMachine) -> bool:
    return "whole" in (await worker.read(_WORKER)).values


def broken(hosts: Sequence[str]) -> Verdict:
    shown = ", ".join(names.host_name(host) for host in hosts)
    return Verdict(
        False,
        "PlugInMissing",
        f"the plug-in that limits jobs is missing or not the cluster's own on {shown}: those nodes start no jobs. "
        "Remove the worker and add it again",
    )


REPAIRED = Verdict(None, "NotProven", f"the plug-in is whole again, and no job has shown it since. {NEXT}")
OBSERVED: Mapping[str, str] = {"PlugInMissing": "", "ConfigurationChanged": "", "NotObserved": ""}
"""Reasons that observing has set, and may take back."""
