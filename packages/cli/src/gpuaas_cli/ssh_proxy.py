"""ProxyCommand for OpenSSH: pumps bytes through the platform to a machine's sshd.

Not a command for people: `gpuaas ssh` passes it to ssh, with the address in the environment and the token in a file;
`gpuaas ssh-config` passes it with `--saved`, for the newest saved access of a context.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuaas_sdk.streams import ByteStream


async def pump_saved(allocation_id: str, context: str) -> None:
    from gpuaas_cli.saved_access import options_for, saved_id
    from gpuaas_cli.session import open_session

    async with open_session(options_for(context)) as session:
        await carry(await session.client.open_stream(saved_id(allocation_id, context), allocation_id))


def _read_token(file: str) -> str:
    return Path(file).read_text()


async def pump_given(access_id: str, allocation_id: str, token_file: str = "") -> None:
    from gpuaas_sdk.streams import open_stream_with

    token = _read_token(token_file) if token_file else os.environ["GPUAAS_TOKEN"]
    await carry(await open_stream_with(os.environ["GPUAAS_API_URL"], token, access_id, allocation_id))


async def carry(stream: "ByteStream") -> None:
    from gpuaas_sdk.streams import pump

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    await pump(stream, reader, writer)
    if stream.close_reason:
        print(f"gpuaas: the platform closed the connection: {stream.close_reason}", file=sys.stderr)


def main() -> None:
    try:
        saved, arguments = sys.argv[1] == "--saved", sys.argv[1:]
        asyncio.run(pump_saved(*arguments[1:3]) if saved else pump_given(*arguments[:3]))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - the edge
        from gpuaas_cli.errors import report

        sys.exit(report(error))


if __name__ == "__main__":
    main()
