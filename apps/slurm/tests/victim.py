"""A slice on which installs and removals are killed. What is left to chance follows from a seed."""

import os
import random
import re
import secrets
from collections.abc import Awaitable

import pytest

from gpuaas_sdk import CommandError, OperationFailed
from slurm_app.phases import BASELINE, PACKAGES
from slurm_app.scope import Scope

from .kills import boundaries, clear_tripwire, set_tripwire
from .lxc_machine import LxcMachine
from .memory_platform import CONTROLLER, WORKER, MemoryPlatform
from .real_machine import assert_clean
from .slices import BARE, Slices

INSTALLED = "installed"
NOT_OURS = "somebody-elses"
SEED = os.environ.get("GPUAAS_SEED") or str(secrets.randbelow(10**6))
SOAK = bool(os.environ.get("GPUAAS_SOAK"))
# Half of an install's time goes into Open MPI and its Python: in one run of four, and where everything is tried.
WITH_MPI = SOAK or random.Random(SEED).random() < 0.25


class Victim:
    """With both roles on one machine."""

    def __init__(self, slices: Slices, machine: LxcMachine, digest: str) -> None:
        self.slices = slices
        self.machine = machine
        self.digest = digest
        self._scope = Scope("demo", "main", "proj", machine, (machine,), digest, mpi=WITH_MPI)
        self._platform = self._new_platform()
        self._moments: dict[str, list[str]] = {}
        self._broken: list[str] = []

    async def install_first(self) -> None:
        """From nothing, without a kill: what comes later starts from the slice as it is then."""
        await self.go_back_to(BARE)
        await set_tripwire(self.machine)
        await self.install()
        self._moments["install"] = boundaries("install", (await clear_tripwire(self.machine))[0])
        await self.slices.keep(self.machine, INSTALLED)

    async def moments_of(self, work: str) -> list[str]:
        """All at which an install or a removal can be killed."""
        if work not in self._moments:
            await self.go_back_to(INSTALLED)
            await set_tripwire(self.machine)
            await self._platform.run("decommission", outcome_lost=True)
            self._moments[work] = boundaries(work, (await clear_tripwire(self.machine))[0])
            await self.remove()
        return self._moments[work]

    async def go_back_to(self, state: str) -> None:
        await self.slices.go_back(self.machine, state, self)
        self._platform = self._new_platform()
        self._broken = []

    def _new_platform(self) -> MemoryPlatform:
        platform = MemoryPlatform(self.slices.directory, self.digest, mpi=WITH_MPI)
        for component in (CONTROLLER, WORKER):
            platform.place(component, self.machine)
        return platform

    async def kill_install(self, moment: str) -> None:
        await BASELINE.run(self._scope)
        await self._kill(PACKAGES.run(self._scope), moment)

    async def kill_removal(self, moment: str) -> None:
        await self._kill(self._platform.run("decommission"), moment)

    async def _kill(self, work: Awaitable[object], moment: str) -> None:
        await set_tripwire(self.machine, moment)
        with pytest.raises((CommandError, OperationFailed)):
            await work
        _, killed = await clear_tripwire(self.machine)
        assert killed == moment, "the moment never came"

    async def break_somebody_elses_package(self) -> None:
        """One that is not ours and cannot be configured."""
        await self._bring_somebody_elses_package("exit 1")
        self._broken = [NOT_OURS]

    async def bring_somebody_elses_package(self) -> None:
        await self._bring_somebody_elses_package("exit 0")

    async def _bring_somebody_elses_package(self, postinst: str) -> None:
        made = await self.machine.read(f"""
            mkdir -p /tmp/deb/DEBIAN && cd /tmp
            printf '%s\\n' 'Package: {NOT_OURS}' 'Version: 1' 'Architecture: all' 'Maintainer: a' \\
                'Description: not ours' >deb/DEBIAN/control
            printf '#!/bin/sh\\n{postinst}\\n' >deb/DEBIAN/postinst && chmod 0755 deb/DEBIAN/postinst
            dpkg-deb --build deb {NOT_OURS}.deb
            status=0
            dpkg --install {NOT_OURS}.deb || status=$?
            rm -r deb {NOT_OURS}.deb
            [ $status = {1 if postinst == "exit 1" else 0} ]
        """)
        assert made.ok, made.stderr

    async def remove_somebody_elses_package(self) -> None:
        removed = await self.machine.read(f"dpkg --purge {NOT_OURS}")
        assert removed.ok, removed.stderr
        self._broken = []

    async def install(self) -> None:
        await BASELINE.run(self._scope)
        await PACKAGES.run(self._scope)
        await self._assert_dpkg_is_whole()

    async def deploy(self) -> None:
        operation = await self._platform.deploy()
        assert operation.result["first_job"]["batch_state"] == "COMPLETED"
        await self._assert_dpkg_is_whole()

    async def remove_beside_files_of_people(self) -> None:
        """Files that a person makes meanwhile are not ours, wherever they lie."""
        mine = "/etc/mine.conf /opt/mine /etc/slurm/mine.conf /usr/local/bin/mine"
        made = await self.machine.read(f"mkdir -p /etc/slurm; for file in {mine}; do echo mine >$file; done")
        assert made.ok, made.stderr
        result = (await self._platform.run("decommission", outcome_lost=True)).result
        assert (await self.machine.read(f"cat {mine}")).stdout == "mine\n" * 4
        for found in result["receipt"]["members"]:
            kept = next(check for check in found["checks"] if check["check"] == "kept")
            assert kept["found"] == "/etc/slurm/mine.conf"
        assert (await self.machine.read(f"rm {mine}; rmdir /etc/slurm")).ok
        await self.remove()

    async def remove(self) -> None:
        assert_clean((await self._platform.run("decommission")).result)
        await self._assert_dpkg_is_whole()
        if self._broken:
            await self.remove_somebody_elses_package()
        await self.slices.assert_as_before(self.machine)

    async def _assert_dpkg_is_whole(self) -> None:
        """But for what somebody else broke."""
        audit = await self.machine.read("dpkg --audit")
        assert re.findall(r"^ (\S+)", audit.stdout, re.MULTILINE) == self._broken, audit.stdout + audit.stderr
        assert bool(audit.stdout) == bool(self._broken), audit.stdout
