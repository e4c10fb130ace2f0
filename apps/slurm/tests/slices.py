"""Real slices for the tests of a whole run, each of which can go back to a state that was kept before."""

from pathlib import Path

from gpuaas_sdk import PackageBundle
from gpuaas_sdk.bundles.building import cache_directory
from slurm_app.bundle import make_bundle

from .lxc_machine import (
    LxcMachine,
    launch,
    machine_address,
    machine_name,
    read_dpkg_status,
    restore_snapshot,
    take_snapshot,
)
from .real_machine import differences, everything

BARE = "bare"


class Slices:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._bundle: PackageBundle | None = None
        self._machines: dict[str, LxcMachine] = {}
        self._before: dict[str, set[str]] = {}
        self._owners: dict[str, object] = {}

    async def get(self, word: str, *, gpus: int = 0) -> LxcMachine:
        """The slice of this name, made where it is not there yet. It has the bundle, and nothing of the app."""
        if word not in self._machines:
            name, address = machine_name(word), machine_address(10 + len(self._machines))
            self._machines[word] = machine = LxcMachine(name, address, {})
            await launch(name, address=address, gpus=gpus)
            digest = await self.digest(machine)
            machine.bundles[digest] = self.directory / "bundle.tar"
            await machine.deliver(digest)
            self._before[name] = await everything(machine)
            await take_snapshot(name, BARE)
        return self._machines[word]

    async def digest(self, machine: LxcMachine) -> str:
        """Of the bundle for the image that this slice was launched from: they all have the same."""
        if self._bundle is None:
            status = self.directory / "status"
            status.write_text(await read_dpkg_status(machine.hostname))
            output = self.directory / "bundle.tar"
            self._bundle = make_bundle(output=output, dpkg_status=status, cache=cache_directory())
        return self._bundle.digest

    async def keep(self, machine: LxcMachine, state: str) -> None:
        await take_snapshot(machine.hostname, state)

    async def go_back(self, machine: LxcMachine, state: str, owner: object) -> None:
        """The slice is the owner's from now on, as it was when the state was kept."""
        self.own(machine, owner)
        await restore_snapshot(machine.hostname, state)

    def own(self, machine: LxcMachine, owner: object) -> None:
        self._owners[machine.hostname] = owner

    def give_up(self, machine: LxcMachine) -> None:
        """Nobody knows how it is, until somebody owns it again."""
        self._owners.pop(machine.hostname, None)

    def is_owner(self, machine: LxcMachine, owner: object) -> bool:
        """Whether nobody else has used it since."""
        return self._owners.get(machine.hostname) is owner

    async def assert_as_before(self, machine: LxcMachine) -> None:
        left = differences(self._before[machine.hostname], await everything(machine))
        assert left == [], "\n".join(left)
