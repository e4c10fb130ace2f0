"""The composition root: builds the parts, joins them, and ends them in order."""

import asyncio
import fcntl
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.artifacts import ArtifactManager, copy_into
from gpuaas_agent.errors import LxdUnavailableError, PermanentError
from gpuaas_agent.firewall import Firewall
from gpuaas_agent.gpus import GpuPool
from gpuaas_agent.hosts import HostManager
from gpuaas_agent.identity import ensure_identity
from gpuaas_agent.inventory import offered_cpus, read_host_inventory, read_inventory
from gpuaas_agent.kernel_limits import raise_limits
from gpuaas_agent.leases import Doors, LeaseKeeper
from gpuaas_agent.link import Link, Outbox
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.lxd import Lxd
from gpuaas_agent.network_guard import NetworkGuard
from gpuaas_agent.networks import NetworkManager
from gpuaas_agent.recovery import Recovery
from gpuaas_agent.rotation import Rotation
from gpuaas_agent.settings import Hosting, Settings
from gpuaas_agent.slice_changes import SliceChanger
from gpuaas_agent.slice_doors import SliceDoors
from gpuaas_agent.slices import Progress, SliceManager
from gpuaas_agent.streams import StreamManager, dial_slices
from gpuaas_agent.tasks import Execute, TaskRunner
from gpuaas_agent.volumes import VolumeManager
from gpuaas_contract.agent_link import (
    AttachVolume,
    ClearHost,
    CreateSlice,
    DeleteSlice,
    DeleteVolume,
    DeliverArtifact,
    DetachVolume,
    NodeConditions,
    PrepareHost,
    RenewTrust,
    ResizeSlice,
    RestartHost,
    RestartSlice,
    SetUsers,
    SliceReport,
    TaskMessage,
)
from gpuaas_contract.backoff import Backoff
from gpuaas_contract.nodes import Inventory, NodeCondition

log = logging.getLogger(__name__)


async def run_agent(settings: Settings) -> None:
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    with only_agent_of(settings.state_dir):
        identity = await ensure_identity(settings)
        api = PlatformApi(settings.api_url, identity, settings.ca_file)
        log.info("node %s (%s), environment %s", identity.name, identity.node_id, settings.environment)
        try:
            await (serve_host if settings.hosting == Hosting.HOST else serve_slices)(settings, api)
        finally:
            await api.aclose()


@dataclass(frozen=True)
class Machines:
    """The parts that the link needs, for slices and for a whole host alike."""

    execute: Execute
    streams: StreamManager
    doors: Doors
    read_inventory: Callable[[], Awaitable[Inventory]]
    report: Callable[[], Awaitable[list[SliceReport]]]
    report_volumes: Callable[[], Awaitable[list[str]]]
    conditions: Callable[[], list[NodeCondition]] = list


async def serve_slices(settings: Settings, api: PlatformApi) -> None:
    raise_limits(processes_of_slices=offered_cpus(settings) * settings.processes_per_cpu)
    lxd = Lxd(settings.lxd_socket)
    outbox = Outbox()
    firewall = Firewall(settings.environment, settings.network_range, settings.state_dir)
    guard = NetworkGuard(
        lxd,
        settings.lxd_socket.parent,
        settings.environment,
        firewall,
        lambda conditions: outbox.put(NodeConditions(conditions=conditions)),
    )
    # Before LXD answers, and whether or not the platform does.
    await guard.start()
    guarding = asyncio.create_task(guard.run(settings.network_check_seconds), name="network-guard")
    try:
        await wait_for_lxd(lxd)
        await _serve_slices(settings, lxd, api, outbox, guard)
    finally:
        # The rules stay.
        guarding.cancel()
        await asyncio.gather(guarding, return_exceptions=True)
        await lxd.aclose()


async def _serve_slices(settings: Settings, lxd: Lxd, api: PlatformApi, outbox: Outbox, guard: NetworkGuard) -> None:
    locks = KeyedLocks()
    networks = NetworkManager(lxd, settings.environment, guard)
    gpus = GpuPool(lxd, settings.gpu_devices)
    volumes = VolumeManager(lxd, settings.storage_pool, settings.environment)
    slices = SliceManager(settings, lxd, api, networks, gpus, volumes)
    changer = SliceChanger(settings, lxd, api, slices, gpus, volumes)
    artifacts = ArtifactManager(settings.artifact_cache, api, slices, limit=settings.artifact_cache_bytes)
    streams = StreamManager(api, dial_slices(slices), outbox.put)
    doors = SliceDoors(settings, lxd, slices, locks)

    async def execute(message: TaskMessage, progress: Progress) -> str | None:
        match message.spec:
            case CreateSlice():
                await slices.ensure(message.spec, message.task_id, progress)
            case DeleteSlice():
                streams.cut(message.spec.allocation_id)
                await slices.delete(message.spec.allocation_id, progress)
            case RestartSlice():
                await changer.restart(message.spec, message.task_id, progress)
            case ResizeSlice():
                await changer.resize(message.spec, progress)
            case SetUsers():
                await changer.set_users(message.spec, progress)
            case RenewTrust():
                await changer.renew_trust(message.spec, progress)
            case AttachVolume():
                await changer.attach_volume(message.spec, message.task_id, progress)
            case DetachVolume():
                await changer.detach_volume(message.spec, progress)
            case DeleteVolume():
                await volumes.delete(message.spec.volume_id, progress)
            case DeliverArtifact():
                return await artifacts.deliver(message.spec, progress)
            case _:
                raise PermanentError("this host offers slices, it is not handed over as a whole")
        return None

    async def inventory() -> Inventory:
        return await read_inventory(settings, lxd)

    recovery = Recovery(slices, doors, locks)
    guard.on_mended = recovery.request
    # Machines come back also while the platform cannot be reached.
    recovering = asyncio.create_task(recovery.run(), name="recovery")
    try:
        conditions = lambda: list(guard.conditions)  # noqa: E731 - read anew at each hello
        machines = Machines(execute, streams, doors, inventory, slices.report, volumes.report, conditions)
        await serve(settings, api, outbox, locks, machines, on_connected=recovery.request)
    finally:
        recovering.cancel()
        await asyncio.gather(recovering, return_exceptions=True)


async def serve_host(settings: Settings, api: PlatformApi) -> None:
    outbox = Outbox()
    host = HostManager(settings, api)
    artifacts = ArtifactManager(settings.artifact_cache, api, host, copy_into, limit=settings.artifact_cache_bytes)
    streams = StreamManager(api, host.open_port, outbox.put)

    async def execute(message: TaskMessage, progress: Progress) -> str | None:
        match message.spec:
            case PrepareHost():
                await host.ensure(message.spec, message.task_id, progress)
            case ClearHost():
                streams.cut(message.spec.allocation_id)
                await host.clear(message.spec.allocation_id, progress)
            case RestartHost():
                await host.restart(message.spec, message.task_id, progress)
            case SetUsers():
                await host.set_users(message.spec, progress)
            case RenewTrust():
                await host.renew_trust(message.spec, progress)
            case DeliverArtifact():
                return await artifacts.deliver(message.spec, progress)
            case _:
                raise PermanentError("this host is handed over as a whole, it has no slices")
        return None

    async def inventory() -> Inventory:
        return read_host_inventory(settings)

    async def no_volumes() -> list[str]:
        return []

    machines = Machines(execute, streams, host, inventory, host.report, no_volumes)
    await serve(settings, api, outbox, KeyedLocks(), machines, on_connected=lambda: None)


async def serve(
    settings: Settings,
    api: PlatformApi,
    outbox: Outbox,
    locks: KeyedLocks,
    machines: Machines,
    *,
    on_connected: Callable[[], None],
) -> None:
    tasks = TaskRunner(machines.execute, outbox.put, locks)
    rotation = Rotation(settings.state_dir, api)
    leases = LeaseKeeper(machines.doors, outbox.put, patience_seconds=settings.lease_patience_seconds)
    link = Link(
        api,
        outbox,
        tasks,
        machines.streams,
        leases,
        read_inventory=machines.read_inventory,
        read_slices=machines.report,
        read_volumes=machines.report_volumes,
        read_conditions=machines.conditions,
        on_connected=on_connected,
        on_rotate=rotation.request,
    )
    rotation.resume()
    try:
        await link.run()
    finally:
        await rotation.aclose()
        await leases.aclose()
        await tasks.aclose()
        await machines.streams.aclose()


async def wait_for_lxd(lxd: Lxd) -> None:
    pauses = Backoff(first_delay=0.2, longest_delay=5).delays()
    while True:
        try:
            await lxd.read_server()
            return
        except LxdUnavailableError as error:
            pause = next(pauses)
            log.warning("%s; next attempt in %.1f s", error, pause)
            await asyncio.sleep(pause)


@contextmanager
def only_agent_of(state_dir: Path) -> Iterator[None]:
    """Hold the lock of the state directory: two agents with one identity would answer each task twice."""
    with (state_dir / "agent.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermanentError(f"cannot start: another agent uses {state_dir}") from None
        yield
