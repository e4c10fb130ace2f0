"""How the sshd of a slice comes to ask for leases, and whose sessions it ends."""

from pathlib import Path

from gpuaas_agent.errors import LxdError, PermanentError, RetryLaterError
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.lxd import Instance, Lxd
from gpuaas_agent.settings import Settings
from gpuaas_agent.slice_config import (
    LEASE_SOURCE,
    LEASES,
    PRINCIPALS,
    READY_TAG,
    SSHD_TAG,
    SSHD_VERSION,
    lease_device,
    sshd_files,
)
from gpuaas_agent.slices import SliceManager, make_shared_dir
from gpuaas_contract.access import OBSERVER_LOGIN, OPERATOR_LOGIN


class SliceDoors:
    def __init__(self, settings: Settings, lxd: Lxd, slices: SliceManager, locks: KeyedLocks) -> None:
        self._settings = settings
        self._lxd = lxd
        self._slices = slices
        self._locks = locks
        self._known: set[str] = set()
        """Slices whose sshd is known to ask."""

    async def list_doors(self) -> dict[str, Path]:
        found = self._settings.slices_dir.glob("*/leases")
        return {path.parent.name: path for path in found if path.is_dir()}

    async def ensure_door(self, allocation_id: str) -> None:
        if allocation_id in self._known:
            return
        found = await self._slices.find(allocation_id)
        if found is None or READY_TAG not in found.config:
            raise PermanentError(f"this host has no machine of {allocation_id}")
        if found.config.get(SSHD_TAG) != SSHD_VERSION:
            async with self._locks.hold(allocation_id):
                await self.ensure_current(allocation_id)
        self._known.add(allocation_id)

    async def ensure_current(self, allocation_id: str) -> None:
        """Give a slice of an older agent the sshd of this one. The caller holds the slice's lock."""
        found = await self._slices.find(allocation_id)
        if found is None or READY_TAG not in found.config or found.config.get(SSHD_TAG) == SSHD_VERSION:
            return
        directory = self._slices.leases_dir(allocation_id)
        make_shared_dir(directory)
        for file in sshd_files():
            await self._lxd.push_file(found.name, file)
        devices = found.devices | {"leases": lease_device(directory)}
        if devices != found.devices:
            await self._lxd.replace_instance(found.name, {}, devices)
        if found.running:
            await self._reload(found)
        await self._lxd.update_instance_config(found.name, {SSHD_TAG: SSHD_VERSION})

    async def _reload(self, found: Instance) -> None:
        """With the principals that were good for ever gone. LXD applies a mode only to a new file."""
        old = " ".join(f"{PRINCIPALS}/{login}" for login in (OPERATOR_LOGIN, OBSERVER_LOGIN))
        await self._run(found, f"rm -f {old} && systemctl reload ssh.service")

    async def cut_sessions(self, allocation_id: str) -> None:
        found = await self._slices.find(allocation_id)
        if found is not None and found.running:
            await self._run(found, LEASE_SOURCE, "cut", LEASES, OBSERVER_LOGIN)

    async def _run(self, found: Instance, script: str, *arguments: str) -> None:
        try:
            status, said = await self._lxd.run(found.name, ["/bin/sh", "-c", script, "gpuaas-leases", *arguments])
        except LxdError as error:
            raise RetryLaterError(f"{found.name}: {error}") from error
        if status != 0:
            raise RetryLaterError(f"{found.name}: {said or f'exit {status}'}")
