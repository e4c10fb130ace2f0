"""The roles that leave a machine and those that stay: they decide what is removed and what the probe expects."""

from dataclasses import dataclass

from slurm_app.slurm.owned import RoleBelongings, belongings
from slurm_app.slurm.roles import Role
from slurm_app.slurm.script import STATE_DIRECTORY

OWNED_PATHS = f"{STATE_DIRECTORY}/owned_paths"
"""On the machine: every path of the packages that are removed, which the baseline does not have."""


@dataclass(frozen=True, slots=True)
class RoleRemoval:
    leaving: frozenset[Role]
    staying: frozenset[Role] = frozenset()

    @property
    def belongings(self) -> RoleBelongings:
        return belongings(self.leaving, self.staying)

    @property
    def whole_machine(self) -> bool:
        return not self.staying

    @property
    def leaving_lists(self) -> str:
        """The files of the bundle that list the packages of these roles."""
        return _lists(self.leaving)

    @property
    def staying_lists(self) -> str:
        return _lists(self.staying)


EVERYTHING = RoleRemoval(frozenset(Role))


def _lists(roles: frozenset[Role]) -> str:
    return " ".join(f"needs-{role.value}" for role in sorted(roles))
