"""Keeps every finished slice running on its bridge, whatever happened meanwhile. State is read, never assumed."""

import asyncio
import contextlib
import logging

from gpuaas_agent.errors import AgentError
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.lxd import Instance
from gpuaas_agent.slice_config import ALLOCATION_TAG, READY_TAG
from gpuaas_agent.slice_doors import SliceDoors
from gpuaas_agent.slices import SliceManager

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 30


class Recovery:
    def __init__(self, slices: SliceManager, doors: SliceDoors, locks: KeyedLocks) -> None:
        self._slices = slices
        self._doors = doors
        self._locks = locks
        self._wanted = asyncio.Event()

    def request(self) -> None:
        """Recover now, for example because the link is back."""
        self._wanted.set()

    async def run(self) -> None:
        while True:
            self._wanted.clear()
            await self.recover()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), INTERVAL_SECONDS)

    async def recover(self) -> None:
        try:
            slices = await self._slices.list_finished()
        except AgentError as error:
            log.warning("cannot list the slices to recover: %s", error)
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
                await self._doors.ensure_current(allocation_id)
            if changed:
                # Outside the lock: a deletion must not wait for a machine that does not answer.
                await self._slices.wait_until_reachable(found)
                log.info("the slice of %s runs again", allocation_id)
        except AgentError as error:
            log.error("cannot recover the slice of %s: %s", allocation_id, error)
