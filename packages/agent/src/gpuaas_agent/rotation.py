"""A new key for this node: on disk before it is offered, in use only after the platform has heard of it."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.errors import PlatformRefusedError, RetryLaterError
from gpuaas_agent.identity import KEY_FILE, NEXT_KEY_FILE, load_or_make_key, public_key_pem
from gpuaas_contract.backoff import Backoff

log = logging.getLogger(__name__)


class Rotation:
    def __init__(self, state_dir: Path, api: PlatformApi) -> None:
        self._state_dir = state_dir
        self._api = api
        self._running: asyncio.Task[None] | None = None

    def request(self) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._until_done(), name="rotation")

    def resume(self) -> None:
        """Go on with a rotation that a crash interrupted."""
        if (self._state_dir / NEXT_KEY_FILE).exists():
            self.request()

    async def aclose(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _until_done(self) -> None:
        pauses = Backoff(first_delay=0.5, longest_delay=10).delays()
        while True:
            try:
                await self.rotate()
                return
            except RetryLaterError as error:
                log.warning("cannot rotate the node's key yet: %s", error)
                await asyncio.sleep(next(pauses))
            except PlatformRefusedError as error:
                log.error("the platform refuses the node's new key: %s", error)
                return

    async def rotate(self) -> None:
        """Offer the new key, then use it. The rename makes it ours; the platform takes both keys in between."""
        key = load_or_make_key(self._state_dir, NEXT_KEY_FILE)
        await self._api.offer_key(public_key_pem(key))
        (self._state_dir / NEXT_KEY_FILE).rename(self._state_dir / KEY_FILE)
        self._api.identity = replace(self._api.identity, key_pem=key)
        # The first use of the new key makes the old one worthless.
        await self._api.offer_key(public_key_pem(key))
        log.info("the node has a new key")
