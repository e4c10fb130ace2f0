"""A kill comes at exactly the boundary that was chosen, once, and the API has heard what came before it."""

import asyncio
import json

import httpx
import pytest

from gpuaas_conformance.boundaries import END, Boundaries, Boundary, Moment
from gpuaas_conformance.proxy import FaultProxy

REPORTS = [("steps", "running"), ("steps", "running"), ("steps", "succeeded"), ("complete", None)]
"""A claim, a step with progress in between, and the end of the operation."""
BOUNDARIES = [
    *(Boundary("deploy", "a", moment) for moment in Moment),
    Boundary("deploy", END, Moment.DONE),
    Boundary("deploy", END, Moment.REPORTED),
]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = b'{"operation": {"kind": "deploy"}, "fencing_token": 1}'
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    writer.close()


async def drive(proxy: FaultProxy) -> None:
    """The requests of a controller, each report again where no answer came."""
    async with httpx.AsyncClient(base_url=f"{proxy.url}/v1/operations/op_1", headers={"Connection": "close"}) as http:
        await http.post("/claim")
        for what, status in REPORTS:
            body = {"fencing_token": 1, **({"key": "a", "status": status} if status else {})}
            try:
                await http.post(f"/{what}", json=body)
            except httpx.TransportError:
                await http.post(f"/{what}", json=body)


@pytest.mark.parametrize("wanted", [None, *BOUNDARIES])
async def test_one_boundary(wanted: Boundary | None) -> None:
    heard: list[int] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with FaultProxy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as proxy:

        def kill(boundary: Boundary) -> None:
            assert boundary == wanted
            heard.append(len([e for e in proxy.exchanges if e.accepted and "status" in json.loads(e.body or "{}")]))

        proxy.weather = boundaries = Boundaries(proxy, kill, lambda boundary: boundary == wanted)
        await drive(proxy)
    server.close()
    assert boundaries.passed == BOUNDARIES
    assert boundaries.struck == ([wanted] if wanted else [])
    reports = {Moment.UNANNOUNCED: 0, Moment.ANNOUNCED: 1, Moment.DONE: 2, Moment.REPORTED: 3}
    if wanted and wanted.step != END:
        assert heard == [reports[wanted.moment]]
    else:
        assert heard == ([3] if wanted else [])
