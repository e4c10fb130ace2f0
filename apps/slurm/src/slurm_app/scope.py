"""All that a phase is told: one cluster, its names and its machines."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuaas_sdk.machines.base import Machine
from slurm_app import names
from slurm_app.errors import RefusedError
from slurm_app.slurm.overrides import checked_overrides
from slurm_app.slurm.role_removal import RoleRemoval
from slurm_app.slurm.roles import Role

MACHINE_USER = "gpuaas"


@dataclass(frozen=True, slots=True)
class Scope:
    """Machines with the same allocation id are one machine: that is what same-node placement means here."""

    cluster_name: str
    partition: str
    account: str
    controller: Machine
    workers: tuple[Machine, ...]
    bundle_digest: str
    users: tuple[str, ...] = (MACHINE_USER,)
    node_comments: Mapping[str, str] = field(default_factory=dict)
    """By allocation id: what the node record says of its origin, normally the member id."""
    munge_key: bytes | None = field(default=None, repr=False)
    """None lets a machine that is the whole cluster keep the key that it made itself."""
    targets: tuple[Machine, ...] | None = None
    """The machines that are prepared or cleaned; all of them where absent. Adding a worker touches only that one."""
    staying: Mapping[str, frozenset[Role]] = field(default_factory=dict)
    """By allocation id: roles that a machine keeps when the others leave it."""
    never_came: frozenset[str] = frozenset()
    """Allocation ids of machines that no operation ever came to: what they have is somebody else's."""
    features: tuple[str, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    process_tracking: str = "auto"
    memory_per_cpu: int = 0
    """In MiB, of a job that asks for none; 0 where it is not known yet: the controller's machine decides then."""
    mpi: bool = False

    def __post_init__(self) -> None:
        names.cluster_name(self.cluster_name)
        names.partition_name(self.partition)
        names.account_name(self.account)
        names.digest(self.bundle_digest)
        for user in self.users:
            names.user_name(user)
        for machine in (self.controller, *self.workers):
            names.host_name(machine.hostname)
            names.address(machine.address)
        for feature in self.features:
            names.feature(feature)
        checked_overrides(self.overrides)
        hosts = [machine.hostname for machine in self.machines]
        if len(set(hosts)) != len(hosts):
            raise RefusedError("name_clash", f"two machines have the same host name: {sorted(hosts)}")

    @property
    def machines(self) -> tuple[Machine, ...]:
        """Each machine once, the controller first."""
        unique: dict[str, Machine] = {}
        for machine in (self.controller, *self.workers):
            unique.setdefault(machine.allocation_id, machine)
        return tuple(unique.values())

    @property
    def prepared(self) -> tuple[Machine, ...]:
        return self.machines if self.targets is None else self.targets

    def removal_from(self, machine: Machine) -> RoleRemoval:
        return RoleRemoval(self.roles_of(machine), self.staying.get(machine.allocation_id, frozenset()))

    def roles_of(self, machine: Machine) -> frozenset[Role]:
        roles = set()
        if machine.allocation_id == self.controller.allocation_id:
            roles.add(Role.CONTROLLER)
        if any(machine.allocation_id == worker.allocation_id for worker in self.workers):
            roles |= {Role.WORKER, Role.MPI} if self.mpi else {Role.WORKER}
        return frozenset(roles)

    def node_comment(self, worker: Machine) -> str:
        return names.comment(self.node_comments.get(worker.allocation_id, worker.allocation_id))
