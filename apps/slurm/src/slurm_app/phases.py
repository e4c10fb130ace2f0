"""The named phases of each operation, in order. Each is idempotent and reads what it needs anew."""

import asyncio
from functools import partial

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import CommandError, Machine, Phase, on_each, read_facts
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.joining import ensure_worker_joined
from slurm_app.scope import Scope
from slurm_app.slurm import (
    accounting,
    facts,
    jobs,
    mariadb,
    munge,
    nodes,
    packages,
    phantoms,
    slurmctld,
    slurmd,
    slurmdbd,
)
from slurm_app.slurm.config import choose_process_tracking


async def ensure_machines_fit(scope: Scope) -> JsonObject:
    """Refuse what would fail later in a way that is harder to understand: names, clocks, user ids, kernel features."""
    seen, tracking, ids = await asyncio.gather(
        on_each(scope.machines, facts.read_machine), slurmctld.read_tracking(scope.controller), _read_ids(scope)
    )
    for machine in scope.prepared:
        facts.refuse_unfit(machine, seen[machine.hostname], scope.roles_of(machine))
    facts.refuse_skew({host: each.clock_skew_seconds for host, each in seen.items()})
    for user, uids in ids.items():
        if missing := [host for host, uid in uids.items() if uid is None]:
            raise RefusedError("user_missing", f"the user {user} is missing on {', '.join(missing)}")
        if len(set(uids.values())) > 1:
            raise RefusedError("uid_mismatch", f"the user {user} has different ids: {uids}")
    for worker in scope.workers:
        if tracking == "proctrack/cgroup" and seen[worker.hostname].own_user_namespace:
            raise RefusedError(
                "process_tracking_unsupported",
                f"{worker.hostname} cannot track jobs by control groups, as this cluster does. "
                "Deploy a cluster with process_tracking: linuxproc",
            )
    return {machine.hostname: seen[machine.hostname].as_evidence() for machine in scope.prepared}


async def _read_ids(scope: Scope) -> dict[str, dict[str, int | None]]:
    """Read the id of each user, by host name."""
    return {user: await on_each(scope.machines, partial(facts.read_uid, user=user)) for user in scope.users}


async def ensure_baseline_recorded(scope: Scope) -> JsonObject:
    async def record(machine: Machine) -> JsonObject:
        baseline = await packages.ensure_baseline_recorded(machine)
        packages.refuse_foreign(machine, baseline)
        return {"packages": len(baseline.packages), "ports": sorted(baseline.ports)}

    return await on_each(scope.prepared, record)


async def ensure_packages_installed(scope: Scope) -> JsonObject:
    async def install(machine: Machine) -> JsonObject:
        roles = scope.roles_of(machine)
        said = await packages.ensure_packages_installed(machine, scope.bundle_digest, roles)
        return {**said, "roles": sorted(roles)}

    return await on_each(scope.prepared, install)


async def ensure_munge_running(scope: Scope) -> JsonObject:
    if scope.munge_key is None and len(scope.machines) > 1:
        raise RefusedError("munge_key_missing", "a cluster of several machines needs one munge key for all")
    return await on_each(scope.prepared, lambda m: munge.ensure_munge_running(m, scope.munge_key))


async def ensure_cluster_configured(scope: Scope) -> JsonObject:
    seen = await on_each(scope.machines, read_facts)
    tracking = choose_process_tracking(list(seen.values()), scope.process_tracking)
    of_slurmd = ""
    if scope.controller.allocation_id in {worker.allocation_id for worker in scope.workers}:
        # In the same round trip, and before systemd reads its units anew for the controller.
        of_slurmd = await slurmd.configuration_script(scope.controller, conf_server=scope.controller.address)
    await slurmctld.ensure_cluster_configured(
        scope.controller,
        cluster_name=scope.cluster_name,
        partition=scope.partition,
        tracking=tracking,
        overrides=scope.overrides,
        memory_per_cpu=scope.memory_per_cpu,
        of_slurmd=of_slurmd,
    )
    return {"proctrack": tracking.proctrack, "limits": tracking.note}


async def ensure_database_running(scope: Scope) -> JsonObject:
    return {**await mariadb.ensure_mariadb_running(scope.controller)}


async def ensure_slurmdbd_running(scope: Scope) -> JsonObject:
    return {**await slurmdbd.ensure_slurmdbd_running(scope.controller)}


async def ensure_associations_made(scope: Scope) -> JsonObject:
    """Make them before slurmctld starts: it then loads them at once, and no job ever sees InvalidAccount."""
    await accounting.ensure_associations_made(
        scope.controller, cluster_name=scope.cluster_name, account=scope.account, users=scope.users
    )
    return {"account": scope.account, "users": list(scope.users)}


async def ensure_slurmctld_running(scope: Scope) -> JsonObject:
    said = await slurmctld.ensure_slurmctld_running(scope.controller)
    loaded = await accounting.read_associations_loaded(scope.controller, account=scope.account, users=scope.users)
    return {**said, "associations_loaded": loaded}


async def ensure_workers_configured(scope: Scope) -> JsonObject:
    async def configure(worker: Machine) -> JsonObject:
        server = scope.controller.address
        await slurmd.ensure_worker_configured(worker, conf_server=server, features=scope.features)
        return {}

    return await on_each(scope.workers, configure)


async def ensure_workers_joined(scope: Scope) -> JsonObject:
    async def join(worker: Machine) -> JsonObject:
        comment = scope.node_comment(worker)
        joined = await ensure_worker_joined(
            scope.controller,
            worker,
            comment=comment,
            features=scope.features,
            fit_memory="DefMemPerCPU" not in scope.overrides,
        )
        return {**joined}

    return await on_each(scope.workers, join)


async def run_first_job(scope: Scope, hosts: tuple[str, ...]) -> JsonObject:
    """Run a job over all these workers; the part that needs GPUs asks the one that has most.

    Only the controller is asked: the workers need not be machines of the operation.
    """
    known = await nodes.read_nodes(scope.controller)
    if missing := [host for host in hosts if host not in known]:
        raise NotReadyError("node_missing", f"slurmctld has no node {', '.join(missing)}")
    ordered = sorted(hosts, key=lambda host: -known[host].gpus)
    job = await jobs.run_first_job(
        scope.controller,
        user=scope.users[0],
        partition=scope.partition,
        account=scope.account,
        workers=tuple(ordered),
        gpus=known[ordered[0]].gpus,
    )
    return job.as_evidence()


async def ensure_worker_proven(scope: Scope) -> JsonObject:
    """Run a job, unless jobs of others run there by then: that proves the same, and must not be disturbed."""
    (worker,) = scope.workers
    await ensure_phantoms_ended(scope, worker)
    if running := await _running(scope, worker.hostname):
        return {"busy": running}
    try:
        return await run_first_job(scope, (worker.hostname,))
    except CommandError:
        if running := await _running(scope, worker.hostname):
            return {"busy": running}
        raise


async def ensure_phantoms_ended(scope: Scope, worker: Machine) -> None:
    """End jobs that slurmctld calls running and that the worker does not run. Where others run beside them nothing is
    done: the way out takes all jobs of the node along."""
    found, others = await phantoms.read_phantoms(scope.controller, worker)
    if found and not others:
        await phantoms.ensure_phantoms_ended(scope.controller, worker.hostname, found)


async def ensure_worker_saved(scope: Scope) -> JsonObject:
    """Wait until slurmctld has saved the worker: killed after that, it still knows the worker."""
    (worker,) = scope.workers
    await nodes.ensure_node_saved(scope.controller, worker.hostname, comment=scope.node_comment(worker))
    return {"node": worker.hostname}


async def _running(scope: Scope, host: str) -> list[str]:
    return [job for job in await nodes.read_jobs(scope.controller, host) if " RUNNING " in job][:5]


async def ensure_controller_proven(scope: Scope) -> JsonObject:
    """Ask slurmctld for its nodes: one that lost its state, its key or its database does not answer as it should."""
    known = await nodes.read_nodes(scope.controller)
    return {"nodes": {name: sorted(record.state) for name, record in known.items()}}


FIT = Phase("check-machines", "Check the machines", ensure_machines_fit)
BASELINE = Phase("record-baseline", "Record what is there before", ensure_baseline_recorded)
PACKAGES = Phase("install-packages", "Install packages", ensure_packages_installed)
MUNGE = Phase("start-munge", "Start munge", ensure_munge_running)
CONFIGURATION = Phase("configure-cluster", "Write the configuration", ensure_cluster_configured)
DATABASE = Phase("start-database", "Start MariaDB", ensure_database_running)
SLURMDBD = Phase("start-slurmdbd", "Start slurmdbd", ensure_slurmdbd_running)
ASSOCIATIONS = Phase("make-associations", "Create cluster, account and users", ensure_associations_made)
SLURMCTLD = Phase("start-slurmctld", "Start slurmctld", ensure_slurmctld_running)
WORKER_CONFIGURATION = Phase("configure-worker", "Write the worker's configuration", ensure_workers_configured)
WORKERS = Phase("join-workers", "Join the workers", ensure_workers_joined)
PROVE_WORKER = Phase("run-first-job", "Run a job on the worker", ensure_worker_proven)
SAVE_WORKER = Phase("save-worker", "Wait until slurmctld has written the worker down", ensure_worker_saved)

CONTROLLER_PHASES = (
    FIT,
    BASELINE,
    PACKAGES,
    MUNGE,
    CONFIGURATION,
    DATABASE,
    SLURMDBD,
    ASSOCIATIONS,
    SLURMCTLD,
)
RECOVER_CONTROLLER_PHASES = (
    MUNGE,
    DATABASE,
    SLURMDBD,
    ASSOCIATIONS,
    SLURMCTLD,
    Phase("prove-controller", "Ask slurmctld for its nodes", ensure_controller_proven),
)
# What a worker's machine needs before there is a controller to join; both are made ready at the same time.
PREPARE_PHASES = (FIT, BASELINE, PACKAGES, MUNGE)
