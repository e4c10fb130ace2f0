"""Requests that wait for capacity are looked at again now and then, whatever made room for them."""

import asyncio

from gpuaas_platform.allocations.service.placement import place_waiting
from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.platform import Platform

PLACE_SECONDS = 2


async def place(platform: Platform) -> None:
    async with platform.database.system_transaction() as tx:
        if await store.has_waiting(tx):
            await place_waiting(tx, platform.plan)
    await asyncio.sleep(PLACE_SECONDS)
