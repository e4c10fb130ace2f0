"""The Slurm app's own database on PostgreSQL, as several controllers on several hosts share it."""

import asyncio

from gpuaas_stack.settings import Settings
from slurm_app.store import Store
from tests.support.database import database_url


async def test_two_controllers_share_one_memory(settings: Settings) -> None:
    one, two = Store(database_url(settings)), Store(database_url(settings))
    try:
        names = await asyncio.gather(
            *(store.account_of("prj_1", f"name{number}") for number in range(5) for store in (one, two))
        )
        assert len(set(names)) == 1
        await one.remember_node("mem_1", "ins_1", "alc_1", "node-1")
        await one.remember_baseline("alc_1", "ins_1", b"before")
        assert await two.node_of("mem_1") == "node-1"
        assert await two.baseline_of("alc_1", "ins_1") == b"before"
        await two.forget("ins_1", "alc_1", ["mem_1"])
        assert await one.node_of("mem_1") is None
        assert await one.baseline_of("alc_1", "ins_1") is None
    finally:
        one.close()
        two.close()
