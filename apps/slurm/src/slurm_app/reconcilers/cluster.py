"""The cluster that an operation is about, as the platform describes it, and the scope that phases work on."""

import asyncio
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from gpuaas_contract.access import PERSON_LOGIN
from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Condition, ConditionStatus, Instance, Member, MemberStatus
from gpuaas_sdk import Machine, MachineUnreachableError, OperationContext, OperationFailed
from gpuaas_sdk.errors import InvalidStateError
from slurm_app import bundle, names
from slurm_app.absent import AbsentMachine, RememberingMachine
from slurm_app.errors import RefusedError
from slurm_app.scope import Scope
from slurm_app.slurm import munge
from slurm_app.slurm.roles import Role
from slurm_app.store import Store

CONTROLLER, WORKER = "controller", "worker"
MUNGE_KEY = "munge-key"
PREPARED = "prepared"
"""In the detail of the controller's member: the workers on its machine that its deploy has installed everything for."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Read anew for every operation: nothing is remembered between them."""

    instance: Instance
    controller: Member
    workers: tuple[Member, ...]
    account: str
    bundle_digest: str

    @classmethod
    async def read(cls, operation: OperationContext, store: Store) -> "Cluster":
        instance, version, members = await asyncio.gather(
            operation.instance(), operation.app_version(), operation.members()
        )
        project = await operation.client.projects.get(instance.project_id)
        live = [member for member in members if member.status != MemberStatus.REMOVED]
        controllers = [member for member in live if member.component_key == CONTROLLER]
        digests = [slot.digest for slot in version.manifest.artifacts if slot.name == bundle.ARTIFACT]
        if len(controllers) != 1 or len(digests) != 1 or digests[0] is None:
            raise OperationFailed(
                "instance_incomplete", "the instance has no controller, or its app version has no packages"
            )
        workers = tuple(member for member in live if member.component_key == WORKER)
        account = await store.account_of(project.id, project.name)
        return cls(instance, controllers[0], workers, account, digests[0])

    @property
    def workers_beside(self) -> tuple[Member, ...]:
        """Workers on the controller's own machine, which is installed for both roles at once."""
        return tuple(w for w in self.workers if w.allocation_id == self.controller.allocation_id)

    @property
    def partition(self) -> str:
        return str(self.instance.inputs["partition"])

    def member(self, member_id: str | None) -> Member:
        found = next((member for member in (self.controller, *self.workers) if member.id == member_id), None)
        if found is None:
            raise OperationFailed("member_gone", "cannot work on the member: it is no longer part of the instance")
        return found

    def scope(
        self,
        operation: OperationContext,
        workers: Iterable[Member],
        *,
        targets: Iterable[Member] | None = None,
        munge_key: bytes | None = None,
        features: Iterable[str] = (),
        leaving: bool = False,
    ) -> Scope:
        """`leaving`: the controller stays on its machine; and a machine that is out of reach is a machine still."""
        chosen = list(workers)
        machines = {m.id: self._machine(operation, m, leaving=leaving) for m in (self.controller, *chosen)}
        inputs = self.instance.inputs
        stays = {self.controller.allocation_id: frozenset({Role.CONTROLLER})}
        return Scope(
            cluster_name=inputs.get("cluster_name") or names.cluster_name_for(self.instance.name),
            partition=self.partition,
            account=self.account,
            controller=machines[self.controller.id],
            workers=tuple(machines[worker.id] for worker in chosen),
            bundle_digest=self.bundle_digest,
            users=(PERSON_LOGIN,),
            node_comments={worker.allocation_id: worker.id for worker in chosen},
            munge_key=munge_key,
            targets=None if targets is None else tuple(machines[target.id] for target in targets),
            staying=stays if leaving and targets is not None else {},
            features=tuple(features),
            overrides=inputs.get("slurm_conf", {}),
            process_tracking=inputs.get("process_tracking", "auto"),
            mpi=bool(inputs.get("mpi", False)),
        )

    def _machine(self, operation: OperationContext, member: Member, *, leaving: bool) -> Machine:
        try:
            machine = operation.machine(member.allocation_id)
        except MachineUnreachableError as error:
            if not leaving:
                raise
            return AbsentMachine(member.allocation_id, node_name(member), str(error))
        return RememberingMachine(machine) if leaving else machine


def version_number(version: str) -> str:
    """Return the number alone: distributions name the same release differently (`slurm-wlm 22.05.8`)."""
    return version.split()[-1]


def node_name(member: Member) -> str:
    """Return the name that Slurm knows it by; a name that fits nothing where the member never got that far."""
    return str(member.adapter_detail.get("node") or f"unknown-{member.id[-8:].lower()}")


def wanted_features(member: Member, wanted: JsonObject) -> tuple[str, ...]:
    """Features that the operation asks for; else those that the worker had."""
    return tuple(wanted.get("features") or member.adapter_detail.get("features") or ())


async def munge_key(operation: OperationContext, cluster: Cluster, *, member_usable: bool = False) -> bytes:
    """Fetch the key that the cluster has: machines with different keys do not talk to each other.

    After a rotation that is the version before, as long as the platform has it: no member alone is given the new one.
    """
    newest = await operation.secret(MUNGE_KEY)
    # Before the controller was made ready once, no machine has a key that counts.
    if newest.version == 1 or "versions" not in cluster.controller.adapter_detail:
        return newest.reveal()
    present = await munge.read_key_digest(operation.machine(cluster.controller.allocation_id))
    candidates = [newest]
    if hashlib.sha256(newest.reveal()).hexdigest() != present:
        with suppress(InvalidStateError):
            candidates.append(await operation.secret(MUNGE_KEY, version=newest.version - 1))
    for candidate in candidates:
        if hashlib.sha256(candidate.reveal()).hexdigest() == present:
            return candidate.reveal()
    found = "has another munge key than" if present else "has no munge key, and nobody can tell which of"
    raise RefusedError(
        "munge_key_rotated",
        f"cannot {operation.operation.kind}: the controller's machine {found} the platform's two newest versions, "
        "since the key was rotated after the cluster was made. All machines need one key, so nothing was changed. "
        "Decommission the cluster and deploy it again: that gives the newest key to all of them.",
        member_usable=member_usable,
    )


def condition(kind: str, holds: bool | None, reason: str, message: str, generation: int) -> Condition:
    status = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[holds]
    return Condition(type=kind, status=status, reason=reason, message=message, observed_generation=generation)
