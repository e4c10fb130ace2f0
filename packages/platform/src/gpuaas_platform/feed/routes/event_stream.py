"""The change feed as server-sent events: written a page at a time, at the pace of the reader."""

import asyncio
from contextlib import suppress

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpuaas_contract.changes import CHANGE_EVENT, END_EVENT, EVENT_STREAM
from gpuaas_platform.api.problems import internal_error, problem_of
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.feed.service.changes import Batch, FeedReader, FeedService

log = structlog.get_logger()
WRITE_SECONDS = 30
"""A reader that takes nothing for so long is let go; it comes back with its last id."""
RETRY_MILLISECONDS = 1_000


class ChangeStream(Response):
    """Ends with an event that says why, as far as the reader can still be reached."""

    media_type = EVENT_STREAM

    def __init__(self, feed: FeedService, reader: FeedReader, correlation_id: str) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._reader = reader
        self._correlation_id = correlation_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feed.waiting(self._reader):
            writing = asyncio.create_task(self._write(send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (writing, leaving):
                    task.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            # The place is told at once: who is cut off before the first change still knows where it was.
            await _send(send, f"retry: {RETRY_MILLISECONDS}\n{self._id(self._reader.position)}\n")
            async for batch in self._reader.batches():
                await _send(send, self._text(batch))
        except TimeoutError:
            log.info("feed_reader_too_slow", principal=self._reader.caller.id)
            return
        except Refusal as refusal:
            end = refusal
        except Exception:
            log.exception("feed_failed")
            end = internal_error()
        problem = problem_of(end, self._correlation_id).model_dump_json()
        with suppress(TimeoutError):
            await _send(send, f"event: {END_EVENT}\ndata: {problem}\n\n")
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _text(self, batch: Batch) -> str:
        """An id without data moves the reader's place and tells it nothing: also a heart-beat does so."""
        parts = [f"event: {CHANGE_EVENT}\n{self._id(entry.position)}data: {entry.json}\n\n" for entry in batch.entries]
        if not parts:
            parts.append(f": still here\n{self._id(batch.position)}\n")
        return "".join(parts)

    def _id(self, position: int) -> str:
        return f"id: {self._reader.cursor_at(position)}\n"


async def _send(send: Send, text: str) -> None:
    """Waits while the reader's buffers are full, so that nothing piles up here."""
    async with asyncio.timeout(WRITE_SECONDS):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
