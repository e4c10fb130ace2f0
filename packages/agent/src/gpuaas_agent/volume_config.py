"""Pure: the requests to LXD that a volume leads to. Names, tags, devices."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuaas_agent.errors import PermanentError
from gpuaas_contract.agent_link import VolumeMount
from gpuaas_contract.ids import VOLUME, is_id
from gpuaas_contract.volumes import MountPath

ENVIRONMENT = "user.gpuaas.environment"
VOLUME_TAG = "user.gpuaas.volume"
TASK_TAG = "user.gpuaas.task"
_PATH: TypeAdapter[str] = TypeAdapter(MountPath)


def volume_name(volume_id: str) -> str:
    """Name the volume in its pool, and the device in each machine that has it."""
    if not is_id(volume_id, VOLUME) or not volume_id.isprintable():
        raise PermanentError(f"{volume_id!r} is not the id of a volume")
    return volume_id.replace("_", "-")


def check_mount(mount: VolumeMount) -> None:
    """Refuse what is not fit to become a path, whoever sent it."""
    volume_name(mount.volume_id)
    try:
        _PATH.validate_python(mount.path)
    except ValidationError:
        raise PermanentError(f"{mount.path!r} is not a path for a volume") from None


def volume_body(mount: VolumeMount, *, task_id: str, environment: str) -> dict[str, Any]:
    """Describe a volume without `security.shifted`: slices of one host have the same map of users, so that owners are
    the same in all, and shifting takes idmapped mounts, which not every kernel gives LXD."""
    return {
        "name": volume_name(mount.volume_id),
        "type": "custom",
        "content_type": "filesystem",
        "description": f"GPUaaS volume {mount.volume_id}",
        "config": {
            "size": f"{mount.size_gib}GiB",
            ENVIRONMENT: environment,
            VOLUME_TAG: mount.volume_id,
            TASK_TAG: task_id,
        },
    }


def volume_device(pool: str, mount: VolumeMount) -> dict[str, str]:
    return {"type": "disk", "pool": pool, "source": volume_name(mount.volume_id), "path": mount.path}


def volume_devices(pool: str, mounts: list[VolumeMount]) -> dict[str, dict[str, str]]:
    return {volume_name(mount.volume_id): volume_device(pool, mount) for mount in mounts}
