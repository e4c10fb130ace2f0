"""The composition root: builds the parts, joins them, and ends them in order."""

import asyncio
import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.artifacts import ArtifactManager
from gpuaas_agent.backoff import Backoff
from gpuaas_agent.errors import LxdUnavailableError, PermanentError
from gpuaas_agent.gpus import GpuPool
from gpuaas_agent.identity import ensure_identity
from gpuaas_agent.inventory import read_inventory
from gpuaas_agent.link import Link
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.lxd import Lxd
from gpuaas_agent.networks import NetworkManager
from gpuaas_agent.outbox import Outbox
from gpuaas_agent.recovery import Recovery
from gpuaas_agent.rotation import Rotation
from gpuaas_agent.settings import Settings
from gpuaas_agent.slice_changes import SliceChanger
from gpuaas_agent.slices import Progress, SliceManager
from gpuaas_agent.streams import StreamManager
from gpuaas_agent.tasks import TaskRunner
from gpuaas_contract.agent_link import (
    CreateSlice,
    DeleteSlice,
    DeliverArtifact,
    ResizeSlice,
    RestartSlice,
    TaskMessage,
)
from gpuaas_contract.nodes import Inventory

log = logging.getLogger(__name__)


async def run_agent(settings: Settings) -> None:
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    with only_agent_of(settings.state_dir):
        identity = await ensure_identity(settings)
        lxd = Lxd(settings.lxd_socket)
        api = PlatformApi(settings.api_url, identity)
        try:
            await wait_for_lxd(lxd)
            log.info("node %s (%s), environment %s", identity.name, identity.node_id, settings.environment)
            await serve(settings, lxd, api)
        finally:
            await api.aclose()
            await lxd.aclose()


async def serve(settings: Settings, lxd: Lxd, api: PlatformApi) -> None:
    outbox = Outbox()
    locks = KeyedLocks()
    networks = NetworkManager(lxd, settings.environment)
    gpus = GpuPool(lxd, settings.gpu_devices)
    slices = SliceManager(settings, lxd, api, networks, gpus)
    changer = SliceChanger(lxd, slices, gpus)
    artifacts = ArtifactManager(settings.artifact_cache, api, slices, limit=settings.artifact_cache_bytes)
    streams = StreamManager(api, slices, outbox.put)

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
            case DeliverArtifact():
                return await artifacts.deliver(message.spec, progress)
        return None

    async def inventory() -> Inventory:
        return await read_inventory(settings, lxd)

    tasks = TaskRunner(execute, outbox.put, locks)
    recovery = Recovery(slices, locks)
    rotation = Rotation(settings.state_dir, api)
    link = Link(
        api,
        outbox,
        tasks,
        streams,
        read_inventory=inventory,
        read_slices=slices.report,
        on_connected=recovery.request,
        on_rotate=rotation.request,
    )
    rotation.resume()
    # Machines come back also while the platform cannot be reached.
    recovering = asyncio.create_task(recovery.run(), name="recovery")
    try:
        await link.run()
    finally:
        recovering.cancel()
        await asyncio.gather(recovering, return_exceptions=True)
        await rotation.aclose()
        await tasks.aclose()
        await streams.aclose()


async def wait_for_lxd(lxd: Lxd) -> None:
    backoff = Backoff(first=0.2, limit=5)
    while True:
        try:
            await lxd.read_server()
            return
        except LxdUnavailableError as error:
            pause = backoff.next()
            log.warning("%s; next attempt in %.1f s", error, pause)
            await asyncio.sleep(pause)


@contextmanager
def only_agent_of(state_dir: Path) -> Iterator[None]:
    """Two agents with one identity would answer each task twice."""
    with (state_dir / "agent.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermanentError(f"cannot start: another agent uses {state_dir}") from None
        yield
