"""Truth is read again, not assumed: after a start or a reconnect, every finished slice runs and answers."""

import asyncio
import logging

from gpuaas_agent.errors import AgentError
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.lxd import Instance
from gpuaas_agent.slice_config import ALLOCATION_TAG, READY_TAG
from gpuaas_agent.slices import SliceManager

log = logging.getLogger(__name__)


class Recovery:
    def __init__(self, slices: SliceManager, locks: KeyedLocks) -> None:
        self._slices = slices
        self._locks = locks
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """In the background; one at a time."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self.run(), name="recovery")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        try:
            slices = await self._slices.list_finished()
        except AgentError as error:
            log.warning("cannot look after the slices: %s", error)
            return
        await asyncio.gather(*(self._recover(found) for found in slices))

    async def _recover(self, listed: Instance) -> None:
        allocation_id = listed.config[ALLOCATION_TAG]
        try:
            async with self._locks.hold(allocation_id):
                # A task may have deleted it while we waited for our turn.
                found = await self._slices.find(allocation_id)
                if found is None or READY_TAG not in found.config:
                    return
                changed = await self._slices.ensure_running(found)
            # Outside the lock: a deletion must not wait for a machine that does not answer.
            await self._slices.wait_until_reachable(found)
        except AgentError as error:
            log.error("the slice of %s is not well: %s", allocation_id, error)
            return
        if changed:
            log.info("the slice of %s runs again", allocation_id)
