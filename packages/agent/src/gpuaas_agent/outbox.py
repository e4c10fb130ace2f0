"""Messages on their way to the platform, kept while the link is down."""

import asyncio
import logging
from collections import deque

from pydantic import BaseModel

log = logging.getLogger(__name__)


class Outbox:
    """Bounded: what falls out is the oldest progress. Results are sent again by whoever owns them."""

    def __init__(self, limit: int = 2_000) -> None:
        self._messages: deque[str] = deque(maxlen=limit)
        self._filled = asyncio.Event()

    def put(self, message: BaseModel) -> None:
        self._messages.append(message.model_dump_json())
        self._filled.set()

    async def get(self) -> str:
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        return self._messages.popleft()

    def put_back(self, text: str) -> None:
        """It may not have arrived; order is kept."""
        if len(self._messages) < (self._messages.maxlen or 0):
            self._messages.appendleft(text)
