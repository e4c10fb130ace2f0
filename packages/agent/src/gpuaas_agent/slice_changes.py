"""Changes to a finished slice: restarted, given another size or a volume. Each looks first and may be repeated."""

import logging
import os
from pathlib import Path

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.errors import LxdError, PermanentError, RetryLaterError
from gpuaas_agent.gpus import GpuPool
from gpuaas_agent.host_key import HostKey, check_certificate
from gpuaas_agent.lxd import Instance, Lxd, PushedFile
from gpuaas_agent.people import SCRIPT, refusal_of, wanted_people
from gpuaas_agent.settings import Settings
from gpuaas_agent.slice_config import (
    HOST_PUBLIC_KEY,
    KEYS,
    PEOPLE,
    PRINCIPALS,
    READY_TAG,
    WANTED_PEOPLE,
    check_network,
    gpu_device,
    gpu_names,
    instance_name,
    limits,
    network_of,
    trust_files,
)
from gpuaas_agent.slices import Progress, SliceManager
from gpuaas_agent.volume_config import volume_name
from gpuaas_agent.volumes import VolumeManager
from gpuaas_contract.agent_link import AttachVolume, DetachVolume, RenewTrust, ResizeSlice, RestartSlice, SetUsers

log = logging.getLogger(__name__)

RESTART_TAG = "user.gpuaas.restart"
"""The task that stopped the machine last: delivered again, it only makes sure that the machine runs."""
SHUT_DOWN_SECONDS = 30


class SliceChanger:
    def __init__(
        self,
        settings: Settings,
        lxd: Lxd,
        api: PlatformApi,
        slices: SliceManager,
        gpus: GpuPool,
        volumes: VolumeManager,
    ) -> None:
        self._settings = settings
        self._lxd = lxd
        self._api = api
        self._slices = slices
        self._gpus = gpus
        self._volumes = volumes

    async def _find(self, allocation_id: str) -> Instance:
        name = instance_name(allocation_id)
        await self._lxd.settle_instance(name)
        found = await self._slices.find(allocation_id)
        if found is None or READY_TAG not in found.config:
            raise PermanentError(f"this host has no machine {name}")
        return found

    async def restart(self, spec: RestartSlice, task_id: str, progress: Progress) -> None:
        found = await self._find(spec.allocation_id)
        if found.config.get(RESTART_TAG) != task_id:
            progress("stop", "shutting the machine down")
            if found.running:
                await self._stop(found)
            await self._lxd.update_instance_config(found.name, {RESTART_TAG: task_id})
            found = await self._find(spec.allocation_id)
        progress("start", "starting the machine")
        await self._slices.ensure_running(found)
        progress("ssh", "waiting for sshd")
        await self._slices.wait_until_reachable(found)

    async def _stop(self, instance: Instance) -> None:
        try:
            await self._lxd.shut_down_instance(instance.name, seconds=SHUT_DOWN_SECONDS)
        except LxdError as error:
            log.warning("%s does not shut down (%s); stopping it by force", instance.name, error)
            found = await self._lxd.find_instance(instance.name)
            if found is not None and found.running:
                await self._lxd.stop_instance(instance.name)

    async def resize(self, spec: ResizeSlice, progress: Progress) -> None:
        found = await self._find(spec.allocation_id)
        has = gpu_names(found)
        async with self._gpus.reserve(max(0, spec.shape.gpus - len(has))) as more:
            devices = {name: device for name, device in found.devices.items() if name not in has[spec.shape.gpus :]}
            devices["root"] = {**devices["root"], "size": f"{spec.shape.disk_gib}GiB"}
            devices |= {Path(source).name: gpu_device(source) for source in more}
            progress("resize", "setting CPUs, memory, disk and GPUs")
            config = limits(spec.shape, os.cpu_count() or 1, self._settings.processes_per_cpu)
            try:
                if found.config.get("limits.cpu") != config["limits.cpu"]:
                    # LXD gives CPUs out again when this changes, but by what it has stored, which may still be the
                    # old number then. The same number in other words makes it do so twice, the second time rightly.
                    await self._lxd.update_instance_config(found.name, {"limits.cpu": f"0{config['limits.cpu']}"})
                await self._lxd.replace_instance(found.name, config, devices)
            except LxdError as error:
                raise PermanentError(f"cannot resize {found.name}: {error}") from error

    async def set_users(self, spec: SetUsers, progress: Progress) -> None:
        found = await self._slices.find(spec.allocation_id)
        if found is None or READY_TAG not in found.config:
            raise PermanentError(f"this host has no machine of {spec.allocation_id}")
        wanted = wanted_people(spec, [str(check_network(network_of(found)).ip)])
        if not found.running:
            raise RetryLaterError("the machine does not run")
        progress("users", f"{len(spec.users)} people")
        await self._lxd.push_file(found.name, PushedFile(WANTED_PEOPLE, wanted, 0o644))
        arguments = ["/bin/sh", "-c", SCRIPT, "gpuaas-users", PEOPLE, PRINCIPALS, KEYS, WANTED_PEOPLE]
        try:
            status, said = await self._lxd.run(found.name, arguments)
        except LxdError as error:
            raise RetryLaterError(f"cannot set the people of {found.name}: {error}") from error
        if status != 0:
            raise refusal_of(said, f"cannot set the people of {found.name}: exit {status}")

    async def renew_trust(self, spec: RenewTrust, progress: Progress) -> None:
        found = await self._find(spec.allocation_id)
        progress("trust", f"authorities from version {spec.oldest} to {spec.newest}")
        public_key = (await self._lxd.read_file(found.name, HOST_PUBLIC_KEY)).strip()
        certificate = await self._api.create_host_certificate(spec.allocation_id, public_key)
        check_certificate(certificate.certificate, HostKey(private="", public=public_key))
        for file in trust_files(certificate):
            await self._lxd.push_file(found.name, file)
        if found.running:
            # Sessions that are open stay; new ones find the new files.
            status, said = await self._lxd.run(found.name, ["systemctl", "reload", "ssh.service"])
            if status != 0:
                raise RetryLaterError(f"sshd of {found.name} does not reload: {said}")

    async def attach_volume(self, spec: AttachVolume, task_id: str, progress: Progress) -> None:
        """Attach while the machine runs; from then on also at each of its starts."""
        found = await self._find(spec.allocation_id)
        await self._volumes.ensure(spec.volume, task_id, progress)
        more = self._volumes.devices([spec.volume])
        if more.items() <= found.devices.items():
            progress("attach", "the volume is attached already")
            return
        progress("attach", f"attaching {volume_name(spec.volume.volume_id)} at {spec.volume.path}")
        try:
            await self._lxd.replace_instance(found.name, {}, found.devices | more)
        except LxdError as error:
            raise PermanentError(f"cannot attach the volume at {spec.volume.path}: {error}") from error

    async def detach_volume(self, spec: DetachVolume, progress: Progress) -> None:
        name = volume_name(spec.volume_id)
        await self._lxd.settle_instance(instance_name(spec.allocation_id))
        found = await self._slices.find(spec.allocation_id)
        if found is None or name not in found.devices:
            progress("detach", "the volume is detached already")
            return
        progress("detach", f"detaching {name} from {found.devices[name]['path']}")
        devices = {key: device for key, device in found.devices.items() if key != name}
        try:
            await self._lxd.replace_instance(found.name, {}, devices)
        except LxdError as error:
            raise PermanentError(f"cannot detach the volume: {error}") from error
