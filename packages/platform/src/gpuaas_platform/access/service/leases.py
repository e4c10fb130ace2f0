"""Access under a lease, or by a role: the machines let its principal in before the holder hears of it, and refuse it at
its end."""

import asyncio
from collections.abc import Sequence

from gpuaas_contract.agent_link import SetLeases
from gpuaas_contract.problems import Code
from gpuaas_platform.access.records import LeasePrincipalRecord
from gpuaas_platform.access.storage import leases as store
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.wakeups import LEASES, Wakeups

TOLD_SECONDS = 5
"""Longer than a busy node takes; whoever asks comes again."""
RECHECK_SECONDS = 0.5


class LeaseDoors:
    def __init__(self, database: Database, wakeups: Wakeups) -> None:
        self._database = database
        self._wakeups = wakeups

    async def wait_until_open(self, principal: str, allocation_id: str | None = None) -> None:
        """Wait for the nodes that can be told, or for that of one machine. One that is offline is told when it is back:
        its machines cannot be reached through it before."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TOLD_SECONDS
        while True:
            woken = self._wakeups.event(LEASES)
            async with self._database.system_transaction() as tx:
                waiting = await store.list_untold(tx, principal, allocation_id)
            if not waiting:
                return
            if loop.time() > deadline:
                machine = waiting[0]
                detail = (
                    f"the agent of node {machine.node_name} has not opened {machine.name} for {principal} within "
                    f"{TOLD_SECONDS} seconds; try again, and where it stays like that, update or restart the agent"
                )
                raise Refusal(Code.UNAVAILABLE, detail, retry_after=1)
            await self._wakeups.wait(woken, RECHECK_SECONDS)

    async def close_expired(self) -> None:
        async with self._database.system_transaction() as tx:
            await store.close_expired(tx)

    async def list_of_node(self, node_id: str) -> list[LeasePrincipalRecord]:
        async with self._database.system_transaction() as tx:
            return await store.list_of_node(tx, node_id)

    @staticmethod
    async def heard(tx: Transaction, told: Sequence[tuple[str, str]]) -> None:
        if told:
            await store.set_told(tx, told)

    async def link_began(self, node_id: str) -> None:
        async with self._database.system_transaction() as tx:
            await store.forget_told(tx, node_id)


class LeaseTeller:
    """The leases that one link has told its agent of, and those that the agent has confirmed."""

    def __init__(self) -> None:
        self._sequence = 0
        self._said: dict[str, dict[str, list[str]]] | None = None
        self._unheard: dict[int, list[tuple[str, str]]] = {}

    def next_message(self, rows: Sequence[LeasePrincipalRecord]) -> SetLeases | None:
        """None where the agent has been told exactly this, or has still to confirm it."""
        machines: dict[str, dict[str, list[str]]] = {}
        for row in rows:
            machines.setdefault(row.allocation_id, {}).setdefault(row.login, []).append(row.principal)
        asked_again = not self._unheard and any(not row.told for row in rows)
        if machines == self._said and not asked_again:
            return None
        self._sequence += 1
        self._said = machines
        self._unheard[self._sequence] = [(row.allocation_id, row.principal) for row in rows]
        return SetLeases(sequence=self._sequence, machines=machines)

    def heard(self, sequence: int) -> list[tuple[str, str]]:
        """List what is in force with this message; it supersedes the ones before it."""
        told = self._unheard.get(sequence, [])
        self._unheard = {number: pairs for number, pairs in self._unheard.items() if number > sequence}
        return told
