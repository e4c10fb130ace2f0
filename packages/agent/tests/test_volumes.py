"""Volumes: what LXD is asked for, what is refused, and what is done again after a crash. No machines needed."""

from typing import Any

import pytest

from gpuaas_agent.errors import LxdError, PermanentError
from gpuaas_agent.lxd import StoredVolume
from gpuaas_agent.volume_config import check_mount, volume_body, volume_devices
from gpuaas_agent.volumes import VolumeManager
from gpuaas_contract.agent_link import VolumeMount
from gpuaas_contract.ids import VOLUME, new_id

ID = new_id(VOLUME)
NAME = ID.replace("_", "-")


def mount(path: str = "/home/shared", volume_id: str = ID, *, make: bool = True) -> VolumeMount:
    return VolumeMount(volume_id=volume_id, path=path, size_gib=3, make=make)


def test_what_lxd_is_asked_for() -> None:
    body = volume_body(mount(), task_id="tsk_1", environment="tests")
    assert body["name"] == NAME
    assert body["config"] == {
        "size": "3GiB",
        "user.gpuaas.environment": "tests",
        "user.gpuaas.volume": ID,
        "user.gpuaas.task": "tsk_1",
    }
    assert volume_devices("pool", [mount()]) == {
        NAME: {"type": "disk", "pool": "pool", "source": NAME, "path": "/home/shared"}
    }


@pytest.mark.parametrize("path", ["/", "/etc/ssh", "relative", "/home/../etc", "/home/\nx", "/proc", "/opt/gpuaas"])
def test_paths_are_checked_here_too(path: str) -> None:
    with pytest.raises(PermanentError, match="not a path for a volume"):
        check_mount(mount(path))


@pytest.mark.parametrize(
    "volume_id", ["", "vol_1", "../x", f"{ID}\n", "alc" + ID[3:]], ids=["none", "short", "path", "line", "other"]
)
def test_ids_are_checked_here_too(volume_id: str) -> None:
    with pytest.raises(PermanentError, match="not the id of a volume"):
        check_mount(mount(volume_id=volume_id))


class Pool:
    """LXD's part, with what happens when it says no."""

    def __init__(self, *volumes: StoredVolume, refuses: str = "") -> None:
        self.volumes = {volume.name: volume for volume in volumes}
        self.refuses = refuses
        self.created: list[dict[str, Any]] = []

    async def list_volumes(self, pool: str) -> list[StoredVolume]:
        return list(self.volumes.values())

    async def find_volume(self, pool: str, name: str) -> StoredVolume | None:
        return self.volumes.get(name)

    async def create_volume(self, pool: str, body: dict[str, Any]) -> None:
        if self.refuses:
            raise LxdError(self.refuses, status=500)
        self.created.append(body)
        self.volumes[body["name"]] = StoredVolume(body["name"], body["config"], [])

    async def delete_volume(self, pool: str, name: str) -> None:
        del self.volumes[name]


def ours(*used_by: str, environment: str = "tests") -> StoredVolume:
    config = {"user.gpuaas.environment": environment, "user.gpuaas.volume": ID}
    return StoredVolume(NAME, config, list(used_by))


def manager(pool: Pool) -> VolumeManager:
    return VolumeManager(pool, "pool", "tests")  # type: ignore[arg-type]


def progress(step: str, message: str) -> None:
    pass


async def test_made_once() -> None:
    pool = Pool()
    for task_id in ("tsk_1", "tsk_2"):
        await manager(pool).ensure(mount(), task_id, progress)
    assert [body["config"]["user.gpuaas.task"] for body in pool.created] == ["tsk_1"]
    assert await manager(pool).report() == [ID]


async def test_a_lost_volume_is_not_replaced_by_an_empty_one() -> None:
    pool = Pool()
    with pytest.raises(PermanentError, match="is not on this host any more"):
        await manager(pool).ensure(mount(make=False), "tsk_1", progress)
    assert pool.created == []


async def test_what_is_not_ours_is_left_alone() -> None:
    pool = Pool(ours(environment="other"))
    assert await manager(pool).report() == []
    for call in (manager(pool).ensure(mount(), "tsk_1", progress), manager(pool).delete(ID, progress)):
        with pytest.raises(PermanentError, match="is not one of this environment"):
            await call
    assert NAME in pool.volumes


async def test_deleted_once_and_not_under_a_machine() -> None:
    pool = Pool(ours("/1.0/instances/alc-1"))
    with pytest.raises(PermanentError, match="it is attached to alc-1"):
        await manager(pool).delete(ID, progress)
    assert NAME in pool.volumes
    pool = Pool(ours())
    for _ in range(2):
        await manager(pool).delete(ID, progress)
    assert pool.volumes == {}


async def test_a_full_pool_is_named() -> None:
    pool = Pool(refuses="write: no space left on device")
    with pytest.raises(PermanentError, match="the storage pool of the host is full"):
        await manager(pool).ensure(mount(), "tsk_1", progress)
