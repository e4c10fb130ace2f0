"""`ProxyCommand` of OpenSSH: pumps its bytes through the platform to a machine's sshd.

Not a command for people: `gpuaas ssh` names it to ssh, with the address and the token in the environment.
"""

import asyncio
import os
import sys

CHUNK = 64 * 1024


async def pump(grant_id: str, allocation_id: str) -> None:
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.credentials import StaticToken

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    client = GpuaasClient(os.environ["GPUAAS_API_URL"], StaticToken(os.environ["GPUAAS_TOKEN"]))
    async with client, await client.open_stream(grant_id, allocation_id) as stream:

        async def outwards() -> None:
            while data := await reader.read(CHUNK):
                await stream.send(data)

        async def inwards() -> None:
            while data := await stream.receive():
                writer.write(data)
                await writer.drain()

        directions = [asyncio.create_task(outwards()), asyncio.create_task(inwards())]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        if stream.close_reason:
            print(f"gpuaas: the connection was ended: {stream.close_reason}", file=sys.stderr)


def main() -> None:
    from gpuaas_cli.errors import report

    try:
        asyncio.run(pump(*sys.argv[1:3]))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - the edge
        sys.exit(report(error))


if __name__ == "__main__":
    main()
