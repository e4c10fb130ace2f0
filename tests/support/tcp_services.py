"""TCP services that tell how they were used: for tests of whatever carries bytes."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

BLOCK = bytes(range(256)) * 256


@dataclass
class Service:
    """Says `hello`, reads until the other side says no more, and only then answers with the digest of what it heard and
    as many bytes back as it was sent."""

    port: int = 0
    open: int = 0
    ended: list[int] = field(default_factory=list)
    """How many bytes each connection that has ended had brought."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        count, digest = 0, hashlib.sha256()
        try:
            writer.write(b"hello\n")
            while data := await reader.read(65536):
                digest.update(data)
                count += len(data)
            writer.write(digest.hexdigest().encode() + b"\n")
            for _ in range(count // len(BLOCK)):
                writer.write(BLOCK)
                await writer.drain()
        except OSError:
            pass
        finally:
            self.open -= 1
            self.ended.append(count)
            writer.close()


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    made = Service()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, blocks: int) -> None:
    """Send so many blocks, end this direction, and check what comes back in the other."""
    assert await reader.readline() == b"hello\n"
    digest = hashlib.sha256()
    for _ in range(blocks):
        writer.write(BLOCK)
        await writer.drain()
        digest.update(BLOCK)
    writer.write_eof()
    assert (await reader.readline()).decode().strip() == digest.hexdigest()
    heard = 0
    while data := await reader.read(65536):
        heard += len(data)
    assert heard == blocks * len(BLOCK), "all of it came back after our own direction had ended"
    writer.close()
