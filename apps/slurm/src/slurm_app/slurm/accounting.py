"""Cluster, account, users: made before slurmctld starts, and a barrier before the first submission."""

from collections.abc import Iterable, Sequence

from gpuaas_sdk.machines.base import Machine
from slurm_app import names
from slurm_app.errors import NotReadyError
from slurm_app.slurm.script import quoted, step

# sacctmgr ends with 1 for "nothing new", so each thing is looked for first. Every command has its own limit:
# sacctmgr retries for minutes where slurmdbd is away.
_FUNCTIONS = """
acct() { timeout 30 sacctmgr --immediate --parsable2 --noheader "$@"; }
has() { grep -Fxq -- "$1" <<<"$2"; }
"""


def associations_script(*, cluster_name: str, account: str, users: Iterable[str]) -> str:
    cluster = quoted(names.cluster_name(cluster_name))
    account = quoted(names.account_name(account))
    pieces = [
        _FUNCTIONS,
        # One question for all: a cluster that is known has at least the association of its root account.
        f"made=$(acct show associations cluster={cluster} format=account,user)",
        f'[ -n "$made" ] || acct add cluster {cluster}',
        f"has {account}'|' \"$made\" || acct add account {account} cluster={cluster} "
        f"description={account} organization={account}",
    ]
    for user in users:
        user = quoted(names.user_name(user))
        pieces.append(
            f"has {account}'|'{user} \"$made\" || "
            f"acct add user {user} cluster={cluster} account={account} defaultaccount={account}"
        )
    return step(*pieces)


async def ensure_associations_made(machine: Machine, *, cluster_name: str, account: str, users: Iterable[str]) -> None:
    script = associations_script(cluster_name=cluster_name, account=account, users=users)
    await machine.run_step("make-associations", script)


def barrier_script(*, account: str, users: Sequence[str]) -> str:
    """Asks slurmctld, not the database: only what slurmctld has loaded counts at submission."""
    account = names.account_name(account)
    pieces = ['loaded() { timeout 10 scontrol show assoc_mgr users="$1" flags=assoc | grep -q "Account=$2 "; }']
    for user in users:
        user = names.user_name(user)
        pieces.append(
            f"wait_for 20 {quoted(f'slurmctld to load the association of {user}')} loaded {quoted(user, account)}"
        )
        pieces.append(f"echo {quoted(f'{account}/{user}')}")
    return step(*pieces)


async def read_associations_loaded(machine: Machine, *, account: str, users: Sequence[str]) -> list[str]:
    """The barrier. It changes nothing; it waits until slurmctld itself knows every association."""
    result = await machine.read(barrier_script(account=account, users=users), timeout=30 + 20 * len(users))
    if not result.ok:
        raise NotReadyError("associations_not_loaded", result.stderr.strip() or "slurmctld gave no answer")
    return result.stdout.split()
