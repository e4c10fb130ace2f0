"""Cluster, account, users: made before slurmctld starts, and a barrier before the first submission."""

from collections.abc import Iterable, Sequence

from gpuaas_sdk.machines.base import Machine
from slurm_app import names
from slurm_app.errors import NotReadyError
from slurm_app.slurm import quick_route
from slurm_app.slurm.script import quoted, step

# Nothing is asked first: sacctmgr says by itself that something exists already. Whether all is there is proven
# by the barrier, by slurmctld itself. Every command has its own limit: sacctmgr retries for minutes where
# slurmdbd is away.
_FUNCTIONS = """
add() {
    local said
    if ! said=$(timeout 30 sacctmgr --immediate add "$@" 2>&1); then
        grep -Eq 'already exists|Nothing new added' <<<"$said" || { echo "$said" >&2; return 1; }
    fi
}
"""


def associations_script(*, address: str, cluster_name: str, account: str, users: Iterable[str]) -> str:
    """The route stays quick until slurmctld, which asks slurmdbd much at its first start, runs."""
    cluster = quoted(names.cluster_name(cluster_name))
    account = quoted(names.account_name(account))
    pieces = [
        _FUNCTIONS,
        f"if ! systemctl is-active --quiet slurmctld.service; then {quick_route.quicken(address)} fi",
        f"add cluster {cluster}",
        f"add account {account} cluster={cluster} description={account} organization={account}",
    ]
    for user in users:
        user = quoted(names.user_name(user))
        pieces.append(f"add user {user} cluster={cluster} account={account} defaultaccount={account}")
    return step(*pieces)


async def ensure_associations_made(machine: Machine, *, cluster_name: str, account: str, users: Iterable[str]) -> None:
    script = associations_script(address=machine.address, cluster_name=cluster_name, account=account, users=users)
    await machine.run_step("make-associations", script)


def barrier_script(*, account: str, users: Sequence[str]) -> str:
    """Ask slurmctld, not the database: only what slurmctld has loaded counts at submission."""
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
    """Wait until slurmctld itself knows every association: a barrier, which changes nothing."""
    result = await machine.read(barrier_script(account=account, users=users), timeout=30 + 20 * len(users))
    if not result.ok:
        said = result.stderr.strip() or "slurmctld does not answer"
        raise NotReadyError("associations_not_loaded", f"cannot use the account {account} yet: {said}")
    return result.stdout.split()
