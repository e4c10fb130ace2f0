"""Slices: one unprivileged system container per allocation, made, started again and deleted.

Each call looks first and may be repeated after a crash at any point. `READY_TAG` divides what is
finished (kept and started) from what an interrupted attempt left (removed and made anew).
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.errors import AgentError, LxdError, PermanentError, RetryLaterError
from gpuaas_agent.gpus import GpuPool
from gpuaas_agent.host_key import check_certificate, make_host_key
from gpuaas_agent.lxd import Instance, Lxd, PushedFile
from gpuaas_agent.machine_port import wait_for_sshd
from gpuaas_agent.networks import NetworkManager
from gpuaas_agent.settings import Settings
from gpuaas_agent.slice_config import (
    ACCOUNT_LINES,
    ALLOCATION_TAG,
    ENVIRONMENT,
    PENDING_TEMPLATES,
    READY_TAG,
    address_of,
    check_spec,
    instance_body,
    instance_name,
    machine_files,
    missing_limits,
    network_of,
    with_line,
)
from gpuaas_agent.volumes import VolumeManager
from gpuaas_contract.agent_link import CreateSlice, SliceReport

log = logging.getLogger(__name__)

Progress = Callable[[str, str], None]

SSHD_SECONDS = 180  # a machine boots in seconds; on a host that starts dozens at once, in a minute or two
REMOVE_ATTEMPTS = 10


class SliceManager:
    def __init__(
        self,
        settings: Settings,
        lxd: Lxd,
        api: PlatformApi,
        networks: NetworkManager,
        gpus: GpuPool,
        volumes: VolumeManager,
    ) -> None:
        self._settings = settings
        self._lxd = lxd
        self._api = api
        self._networks = networks
        self._gpus = gpus
        self._volumes = volumes

    def artifacts_dir(self, allocation_id: str) -> Path:
        return self._settings.slices_dir / allocation_id / "artifacts"

    def leases_dir(self, allocation_id: str) -> Path:
        return self._settings.slices_dir / allocation_id / "leases"

    async def find(self, allocation_id: str) -> Instance | None:
        """Find the slice of this allocation in this environment, finished or not."""
        name = instance_name(allocation_id)
        found = await self._lxd.find_instance(name)
        if found is not None and not self._is_ours(found, allocation_id):
            raise PermanentError(f"instance {name} exists and is not a slice of this environment")
        return found

    async def list_finished(self) -> list[Instance]:
        instances = await self._lxd.list_instances()
        return [
            found
            for found in instances
            if found.config.get(ENVIRONMENT) == self._settings.environment and READY_TAG in found.config
        ]

    async def report(self) -> list[SliceReport]:
        """List all slices of this environment, whatever state they are in."""
        return [
            SliceReport(
                allocation_id=found.config[ALLOCATION_TAG],
                finished=READY_TAG in found.config,
                running=found.running,
            )
            for found in await self._lxd.list_instances()
            if found.config.get(ENVIRONMENT) == self._settings.environment and ALLOCATION_TAG in found.config
        ]

    async def ensure(self, spec: CreateSlice, task_id: str, progress: Progress) -> None:
        check_spec(spec)
        name = instance_name(spec.allocation_id)
        await self._lxd.settle_instance(name)
        found = await self.find(spec.allocation_id)
        if found is not None and READY_TAG in found.config:
            progress("start", "the slice exists already")
            await self.ensure_running(found)
            await self.wait_until_reachable(found)
            return
        if found is not None:
            progress("clean", "removing what an interrupted attempt left")
            await self._remove_instance(found)
        try:
            await self._build(spec, name, task_id, progress)
        except AgentError as error:
            await self._remove_failed(spec.allocation_id)
            if isinstance(error, LxdError):
                full = "the storage pool of the host is full: " if "no space left" in str(error).lower() else ""
                raise PermanentError(f"cannot create the slice: {full}{error}") from error
            raise

    async def _build(self, spec: CreateSlice, name: str, task_id: str, progress: Progress) -> None:
        progress("identity", "making the host key and asking for its certificate")
        key = make_host_key(spec.hostname)
        certificate = await self._api.create_host_certificate(spec.allocation_id, key.public)
        check_certificate(certificate.certificate, key)
        artifacts = self.artifacts_dir(spec.allocation_id)
        make_shared_dir(artifacts)
        leases = self.leases_dir(spec.allocation_id)
        make_shared_dir(leases)
        for mount in spec.volumes:
            await self._volumes.ensure(mount, task_id, progress)
        progress("network", f"bridge {spec.network.bridge} with {spec.network.gateway_cidr}")
        async with self._networks.reserve(spec.network), self._gpus.reserve(spec.shape.gpus) as gpu_devices:
            image = spec.image or self._settings.image_alias
            progress("instance", f"{name} from {image}, {len(gpu_devices)} GPUs")
            body = instance_body(
                spec,
                task_id=task_id,
                environment=self._settings.environment,
                image_alias=image,
                pool=self._settings.storage_pool,
                artifacts_dir=artifacts,
                gpu_devices=gpu_devices,
                volume_devices=self._volumes.devices(spec.volumes),
                host_cpus=os.cpu_count() or 1,
                processes_per_cpu=self._settings.processes_per_cpu,
                leases_dir=leases,
            )
            await self._lxd.create_instance(body)
        progress("files", "host key, certificate, authority, principals, names")
        await self._lxd.update_instance_config(name, {PENDING_TEMPLATES: ""})
        for file in machine_files(spec, key, certificate):
            await self._lxd.push_file(name, file)
        for path, line in ACCOUNT_LINES.items():
            content = with_line(await self._lxd.read_file(name, path), line)
            await self._lxd.push_file(name, PushedFile(path, content, 0o640 if path == "/etc/shadow" else 0o644))
        progress("start", "starting the machine")
        await self._lxd.start_instance(name)
        progress("ssh", f"waiting for sshd on {spec.address}")
        await wait_for_sshd(spec.network.bridge, spec.address, timeout=SSHD_SECONDS)
        await self._lxd.update_instance_config(name, {READY_TAG: "true"})

    async def ensure_running(self, instance: Instance) -> bool:
        """Make a finished slice run on its bridge; return whether anything had to be done."""
        await self._ensure_limits(instance)
        async with self._networks.reserve(network_of(instance)) as bridge_changed:
            if not instance.running:
                await self._start(instance)
                return True
            attached = await self._networks.ensure_attached(instance)
            return bridge_changed or attached

    async def _ensure_limits(self, instance: Instance) -> None:
        missing = missing_limits(instance.config, self._settings.processes_per_cpu)
        if missing:
            try:
                await self._lxd.update_instance_config(instance.name, missing)
            except LxdError as error:
                # It runs as it did; the next look tries again.
                log.warning("cannot limit %s: %s", instance.name, error)

    async def wait_until_reachable(self, instance: Instance, *, timeout: float = SSHD_SECONDS) -> None:
        await wait_for_sshd(network_of(instance).bridge, address_of(instance), timeout=timeout)

    async def _start(self, instance: Instance) -> None:
        try:
            await self._lxd.start_instance(instance.name)
        except LxdError as error:
            if not await self._runs_soon(instance.name):
                raise PermanentError(f"cannot start {instance.name}: {error}") from error

    async def _runs_soon(self, name: str) -> bool:
        """Wait for a start that LXD itself began: it starts machines when it starts, and refuses ours meanwhile."""
        for _ in range(50):
            found = await self._lxd.find_instance(name)
            if found is None or found.running:
                return found is not None
            await asyncio.sleep(0.2)
        return False

    async def delete(self, allocation_id: str, progress: Progress) -> None:
        name = instance_name(allocation_id)
        await self._lxd.settle_instance(name)
        found = await self.find(allocation_id)
        if found is None:
            progress("delete", "the slice is gone already")
        else:
            progress("delete", f"stopping and deleting {name}")
            await self._remove_instance(found)
        if await self._lxd.find_instance(name) is not None:
            raise RetryLaterError(f"{name} is still there after LXD deleted it")
        await self._remove_directory(allocation_id)
        progress("network", "removing the bridge if this was its last machine")
        await self._networks.delete_unused()

    async def _remove_instance(self, instance: Instance) -> None:
        """Stop and delete it, and look again before giving up: an operation that LXD began before it or an agent died
        may still go on, so that a machine that was stopped a moment ago runs, or is busy."""
        for _ in range(REMOVE_ATTEMPTS):
            found = await self._lxd.find_instance(instance.name)
            if found is None:
                return
            try:
                if found.status != "Stopped":
                    await self._lxd.stop_instance(instance.name)
                await self._lxd.delete_instance(instance.name)
                return
            except LxdError as error:
                log.info("removing %s: %s", instance.name, error)
                last = error
            await asyncio.sleep(0.5)
            await self._lxd.settle_instance(instance.name)
        raise PermanentError(f"cannot delete {instance.name}: {last}") from last

    async def _remove_failed(self, allocation_id: str) -> None:
        """Remove what a failed creation left. Its own reason matters more than a failure here."""
        try:
            await self.delete(allocation_id, lambda _step, _message: None)
        except AgentError as error:
            log.warning("cannot remove what the failed creation of %s left: %s", allocation_id, error)

    async def _remove_directory(self, allocation_id: str) -> None:
        directory = self._settings.slices_dir / allocation_id
        if directory.exists():
            await asyncio.to_thread(shutil.rmtree, directory)

    def _is_ours(self, instance: Instance, allocation_id: str) -> bool:
        config = instance.config
        return config.get(ENVIRONMENT) == self._settings.environment and config.get(ALLOCATION_TAG) == allocation_id


def make_shared_dir(path: Path) -> None:
    """Make the directory readable by everyone inside: the slice's root is not the host's root."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)
