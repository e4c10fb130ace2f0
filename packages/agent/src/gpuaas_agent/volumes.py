"""Volumes: custom volumes in the environment's pool, made with their first machine, deleted when they are asked to.

Each call looks first and may be repeated after a crash at any point.
"""

from collections.abc import Callable

from gpuaas_agent.errors import LxdError, PermanentError, RetryLaterError
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.lxd import Lxd, StoredVolume
from gpuaas_agent.volume_config import ENVIRONMENT, VOLUME_TAG, check_mount, volume_body, volume_devices, volume_name
from gpuaas_contract.agent_link import VolumeMount

Progress = Callable[[str, str], None]


class VolumeManager:
    def __init__(self, lxd: Lxd, pool: str, environment: str) -> None:
        self._lxd = lxd
        self._pool = pool
        self._environment = environment
        self._locks = KeyedLocks()

    def devices(self, mounts: list[VolumeMount]) -> dict[str, dict[str, str]]:
        return volume_devices(self._pool, mounts)

    async def report(self) -> list[str]:
        """List all volumes of this environment."""
        return [
            found.config[VOLUME_TAG]
            for found in await self._lxd.list_volumes(self._pool)
            if found.config.get(ENVIRONMENT) == self._environment and VOLUME_TAG in found.config
        ]

    async def ensure(self, mount: VolumeMount, task_id: str, progress: Progress) -> None:
        check_mount(mount)
        name = volume_name(mount.volume_id)
        async with self._locks.hold(mount.volume_id):
            if await self._find(mount.volume_id) is not None:
                return
            if not mount.make:
                raise PermanentError(f"the volume {name} is not on this host any more")
            progress("volume", f"making {name} with {mount.size_gib} GiB")
            body = volume_body(mount, task_id=task_id, environment=self._environment)
            try:
                await self._lxd.create_volume(self._pool, body)
            except LxdError as error:
                full = "the storage pool of the host is full: " if "no space left" in str(error).lower() else ""
                raise PermanentError(f"cannot make the volume {name}: {full}{error}") from error

    async def delete(self, volume_id: str, progress: Progress) -> None:
        name = volume_name(volume_id)
        async with self._locks.hold(volume_id):
            found = await self._find(volume_id)
            if found is None:
                progress("delete", "the volume is gone already")
                return
            if found.used_by:
                users = ", ".join(path.rpartition("/")[2] for path in found.used_by)
                raise PermanentError(f"cannot delete the volume {name}: it is attached to {users}")
            progress("delete", f"deleting {name}")
            try:
                await self._lxd.delete_volume(self._pool, name)
            except LxdError as error:
                raise PermanentError(f"cannot delete the volume {name}: {error}") from error
            if await self._find(volume_id) is not None:
                raise RetryLaterError(f"{name} is still there after LXD deleted it")

    async def _find(self, volume_id: str) -> StoredVolume | None:
        name = volume_name(volume_id)
        found = await self._lxd.find_volume(self._pool, name)
        if found is None:
            return None
        ours = found.config.get(ENVIRONMENT) == self._environment and found.config.get(VOLUME_TAG) == volume_id
        if not ours:
            raise PermanentError(f"volume {name} exists and is not one of this environment")
        return found
