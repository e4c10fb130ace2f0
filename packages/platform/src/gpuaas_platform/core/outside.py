"""Effects outside of PostgreSQL: an intent is committed first, then the effect happens at a place made from it, then
it is finished. What a crash leaves between two of these is ended by a sweeper."""

from typing import Protocol

from gpuaas_contract.base import Resource
from gpuaas_platform.core.database import Transaction


class OutsideEffect(Protocol):
    async def intend(self, tx: Transaction) -> Resource | None:
        """Check everything, and write down what is going to be done. An answer, where nothing is to be done."""
        ...

    async def act(self) -> None:
        """The effect itself, in no transaction."""
        ...

    async def finish(self, tx: Transaction) -> Resource:
        """Make it visible. What was true in `intend` may have changed."""
        ...

    async def abandon(self, tx: Transaction) -> None:
        """It did not work out. May come after a finish whose answer was lost, and then must change nothing."""
        ...
