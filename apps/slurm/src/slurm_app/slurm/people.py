"""People of the cluster in Slurm: an association each with the project's account, in batches.

A person is added when the controller's machine knows the name, and loses the right in this order: no submission, jobs
cancelled, association removed. What they ran stays in sacct."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuaas_sdk import Machine, ObservedMachine
from slurm_app import names
from slurm_app.errors import NotReadyError
from slurm_app.slurm.script import quoted, step

PREFIX = "u-"
"""Of the names of people, which the platform gives. Associations of others are not the app's to touch."""
AT_ONCE = 100
"""Names in one command: sacctmgr takes as long for a hundred as for one."""
CANCEL_SECONDS = 40
_RECORD = re.compile(r"^ClusterName=\S+ Account=(\S+) UserName=([^\s(]+)\(\d+\)")
_BLOCKED = re.compile(r"\bMaxSubmitJobs=0\b")

_FUNCTIONS = """
manage() {
    local said
    if ! said=$(timeout 30 sacctmgr --immediate "$@" 2>&1); then
        if ! grep -Eq 'already exists|Nothing new added|Nothing modified|Nothing deleted' <<<"$said"; then
            echo "sacctmgr $1 $2: $said" >&2
            return 1
        fi
    fi
}
"""


@dataclass(frozen=True, slots=True)
class Change:
    """Changes that bring the associations of an account up to date."""

    add: tuple[str, ...]
    unblock: tuple[str, ...]
    remove: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.add or self.unblock or self.remove)

    def worth_asking(self, people: Iterable[str]) -> bool:
        """Whether somebody waits for it. One who may use the cluster and has an association, but no user on the
        machine for the moment, is not removed for that."""
        return bool(self.add or self.unblock or set(self.remove) - set(people))


def compare(wanted: Iterable[str], present: Mapping[str, bool]) -> Change:
    """`present` has the people with an association, and whether their submission is blocked."""
    logins = set(wanted)
    return Change(
        add=tuple(sorted(logins - present.keys())),
        unblock=tuple(sorted(login for login in logins if present.get(login))),
        remove=tuple(sorted(present.keys() - logins)),
    )


def parse_associations(text: str, account: str) -> dict[str, bool]:
    """Read `scontrol show assoc_mgr`: people with an association to the account, and who may not submit."""
    found: dict[str, bool] = {}
    login = None
    for line in text.splitlines():
        if record := _RECORD.match(line):
            login = record[2] if record[1] == account and record[2].startswith(PREFIX) else None
            if login is not None:
                found[login] = False
        elif line.startswith("ClusterName="):
            login = None
        elif login is not None and _BLOCKED.search(line):
            found[login] = True
    return found


async def read_associations(controller: Machine | ObservedMachine, account: str) -> dict[str, bool]:
    """Ask slurmctld, not the database: only what slurmctld has loaded counts at submission."""
    account = names.account_name(account)
    asked = f"timeout 10 scontrol show assoc_mgr flags=assoc accounts={quoted(account)}"
    result = await controller.read(asked, timeout=20)
    if not result.ok:
        said = result.stderr.strip() or "slurmctld does not answer"
        raise NotReadyError("associations_unknown", f"cannot read who may submit: {said}", member_usable=True)
    return parse_associations(result.stdout, account)


async def read_numbers(controller: Machine, logins: Sequence[str]) -> dict[str, int]:
    """Read the numbers of those whom the machine knows."""
    asked = " ".join(quoted(names.user_name(login)) for login in logins)
    result = await controller.read(f"getent passwd {asked}; true" if logins else "true", timeout=20)
    entries = [line.split(":") for line in result.stdout.splitlines()]
    return {entry[0]: int(entry[2]) for entry in entries if len(entry) > 2 and entry[2].isdigit()}


def mapping_script(change: Change, *, cluster_name: str, account: str) -> str:
    """Whoever lost the right comes first. Their jobs are cancelled also where slurmdbd is away: that needs slurmctld
    alone. What fails is told at the end, and the next run begins anew from what is there."""
    cluster = quoted(f"cluster={names.cluster_name(cluster_name)}")
    account = quoted(f"account={names.account_name(account)}")
    default = account.replace("account=", "defaultaccount=", 1)
    pieces = [_FUNCTIONS, "failed=0"]
    for chunk in _chunks(change.remove):
        listed = quoted(f"name={','.join(chunk)}")
        pieces += [
            f"manage modify user where {listed} {cluster} {account} set maxsubmitjobs=0 || failed=1",
            f'for login in {quoted(*chunk)}; do timeout 20 scancel --quiet --user="$login" || failed=1; done',
            f'idle() {{ [ -z "$(timeout 10 squeue --noheader --format=%A --user={",".join(chunk)})" ]; }}',
            f"wait_for {CANCEL_SECONDS} 'their jobs to end' idle || failed=1",
            f"[ $failed = 1 ] || manage remove user where {listed} {cluster} {account} || failed=1",
        ]
    for chunk in _chunks(change.add):
        pieces.append(f"manage add user {quoted(','.join(chunk))} {cluster} {account} {default} || failed=1")
    for chunk in _chunks(change.unblock):
        listed = quoted(f"name={','.join(chunk)}")
        pieces.append(f"manage modify user where {listed} {cluster} {account} set maxsubmitjobs=-1 || failed=1")
    pieces.append("[ $failed = 0 ]")
    return step(*pieces)


def _chunks(logins: Sequence[str]) -> list[list[str]]:
    checked = [names.user_name(login) for login in logins]
    return [checked[start : start + AT_ONCE] for start in range(0, len(checked), AT_ONCE)]


async def ensure_mapped(controller: Machine, change: Change, *, cluster_name: str, account: str) -> None:
    script = mapping_script(change, cluster_name=cluster_name, account=account)
    batches = sum(len(_chunks(part)) for part in (change.add, change.unblock, change.remove, change.remove))
    await controller.run_step("map-people", script, timeout=60 + CANCEL_SECONDS + 30 * batches)
