"""Tunnels to ports that an app declares: whom they are refused to and in which words, what is written down, what cuts
them. The node is simulated, and leads them to a service on this host as an agent would."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuaas_contract.identity import Role
from gpuaas_contract.instances import Member
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ApiError, NotFoundError
from gpuaas_sdk.streams import ByteStream, forward
from gpuaas_stack.settings import Settings
from tests.e2e.command_line import CommandLine
from tests.http.test_cli_apps import said
from tests.http.test_grants import person
from tests.http.test_observability import metrics_of
from tests.support.database import connect
from tests.support.identity import PASSWORD
from tests.support.lifecycle import Echo
from tests.support.processes import metrics_header
from tests.support.tcp_services import BLOCK, Service, converse, service
from tests.support.tunnels import ended_with
from tests.support.world import World

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def deployed(world: World, *tails: str) -> Echo:
    machines = [await world.allocation(name) for name in tails]
    return await Echo.deployed(world, *machines, head=await world.allocation("head"))


async def head_of(echo: Echo) -> Member:
    return next(member for member in await echo.members() if member.component_key == "head")


@asynccontextmanager
async def tunnel(
    client: GpuaasClient, member_id: str, port: str = "voice"
) -> AsyncIterator[tuple[Connection, ByteStream]]:
    """A connection of this host whose other end is carried to the port."""
    stream = await client.open_port(member_id, port)
    ours, theirs = socket.socketpair()
    carrying = asyncio.create_task(forward(stream, *await asyncio.open_connection(sock=theirs)))
    connection = await asyncio.open_connection(sock=ours)
    try:
        yield connection, stream
    finally:
        connection[1].close()
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def refusal(client: GpuaasClient, member_id: str, port: str) -> ApiError:
    """Of the look before, and of the connection: both say the same."""
    with pytest.raises(ApiError) as looked:
        await client.members.port(member_id, port)
    with pytest.raises(ApiError) as opened:
        await client.open_port(member_id, port)
    assert (looked.value.code, looked.value.detail) == (opened.value.code, opened.value.detail)
    return opened.value


def trail(settings: Settings, target: str) -> list[tuple[str, dict[str, Any]]]:
    with connect(settings) as connection:
        query = "SELECT action, detail FROM audit_entries WHERE target = %s AND action LIKE 'tunnel.%%' ORDER BY id"
        return [(action, detail) for action, detail in connection.execute(query, (target,)).fetchall()]


async def test_bytes_flow_both_ways_and_each_direction_ends_by_itself(world: World, settings: Settings) -> None:
    echo = await deployed(world)
    head = await head_of(echo)
    async with service() as behind, person(world, "ada") as ada, httpx.AsyncClient(base_url=settings.api_url) as http:
        world.node.service_port = behind.port
        before = metrics_of((await http.get("/metrics", headers=metrics_header(settings))).text)
        looked = await ada.client.members.port(head.id, "7000")
        assert (looked.name, looked.number, looked.allocation_id) == ("voice", 7000, head.allocation_id)
        assert world.node.streams == {}, "to look connects to nothing"

        async def one(blocks: int) -> None:
            async with tunnel(ada.client, head.id) as (connection, stream):
                await converse(*connection, blocks)
                assert stream.close_reason == ""

        await one(1)
        await asyncio.gather(one(0), one(40), one(400))
        assert sorted(behind.ended) == [0, len(BLOCK), 40 * len(BLOCK), 400 * len(BLOCK)]
        asked = list(world.node.streams.values())
        assert {(ask.port, ask.allocation_id, ask.half_close) for ask in asked} == {(7000, head.allocation_id, True)}

        async def written() -> list[tuple[str, dict[str, Any]]] | None:
            found = trail(settings, head.allocation_id)
            return found if len([1 for action, _ in found if action == "tunnel.close"]) == 4 else None

        entries = await world.until(written, "the ends are written down")
        granted = [detail for action, detail in entries if action == "tunnel.grant"]
        opened = [detail for action, detail in entries if action == "tunnel.open"]
        closed = [detail for action, detail in entries if action == "tunnel.close"]
        assert len(granted) == 1, "one access serves many connections"
        assert [detail["grant"] for detail in opened] == [granted[0]["grant"]] * 4
        assert opened[0] == {"grant": granted[0]["grant"], "member": head.id, "port": "voice", "number": 7000}
        assert sum(detail["bytes_to_machine"] for detail in closed) == sum(behind.ended)
        assert {(detail["port"], detail["cut"]) for detail in closed} == {("voice", False)}
        after = metrics_of((await http.get("/metrics", headers=metrics_header(settings))).text)
        assert after["gpuaas_streams_opened_total"] - before["gpuaas_streams_opened_total"] == 4
        sent = 'gpuaas_stream_bytes_total{direction="to_machine"}'
        assert after[sent] - before.get(sent, 0) == sum(behind.ended)


async def test_only_what_is_declared_for_people_is_reached(world: World) -> None:
    echo = await deployed(world, "tail")
    head, (tail,) = await head_of(echo), await echo.tails()
    async with service() as behind, person(world, "ada") as ada:
        world.node.service_port = behind.port
        for member, port, status, words in [
            (head, "nothing", 403, "declares no port 'nothing' for head, which has voice (7000/tcp), drum (7001/udp)"),
            (head, "22", 403, "declares no port '22' for head"),
            (head, "whisper", 403, "declares no port 'whisper' for head"),
            (tail, "voice", 403, "declares no port 'voice' for tail, which has whisper (7003/tcp)"),
            (head, "inner", 403, "port inner of head is for tail of the app, not for people"),
            (head, "drum", 422, "port drum of head is UDP: a tunnel carries TCP only"),
            (head, "x" * 5_000, 403, "declares no port 'xxx"),
            (head, "\x1b[2J'; DROP", 403, "declares no port"),
        ]:
            refused = await refusal(ada.client, member.id, port)
            assert refused.status == status
            assert words in refused.detail
            assert len(refused.detail) < 500
        assert world.node.streams == {}
        async with tunnel(ada.client, tail.id, "whisper") as (connection, _):
            await converse(*connection, 1)


async def test_who_may_and_who_must_not_know(world: World) -> None:
    echo = await deployed(world)
    head = await head_of(echo)
    async with (
        service() as behind,
        person(world, "viewer", Role.PROJECT_VIEWER) as viewer,
        person(world, "stranger", None) as stranger,
        person(world, "lead", Role.PROJECT_ADMIN) as lead,
    ):
        world.node.service_port = behind.port
        assert (await refusal(viewer.client, head.id, "voice")).status == 403
        assert (await refusal(world.controller, head.id, "voice")).status == 403
        other = await world.admin.tenants.create(f"other-{head.id[-8:].lower()}")
        await world.admin.memberships.create(stranger.user.id, Role.TENANT_ADMIN, tenant_id=other.id)
        hidden = await refusal(stranger.client, head.id, "voice")
        assert (hidden.status, hidden.detail) == (404, f"there is no member {head.id!r}")
        assert (await refusal(lead.client, "mem_nothing", "voice")).status == 404
        async with tunnel(lead.client, head.id) as (connection, _):
            await converse(*connection, 1)


async def test_nothing_leads_to_a_member_that_nobody_has_installed(world: World) -> None:
    instance = await world.deploy(head=await world.allocation("head"))
    (member,) = await world.admin.instances.members(instance.id).all()
    pending = await refusal(world.admin, member.id, "voice")
    assert (pending.status, pending.code) == (409, "invalid_state")
    assert "is pending: nothing has been installed on it yet" in pending.detail
    assert (await world.admin.instances.get(instance.id)).access_notes == []


async def closed_by(
    world: World, settings: Settings, connection: Connection, stream: ByteStream, member: Member
) -> None:
    """The connection is cut, with a reason, and the trail has it."""
    async with asyncio.timeout(60):
        assert await connection[0].read() == b""
    assert stream.close_reason == "the right behind this connection has ended"

    async def written() -> bool:
        return any(a == "tunnel.close" and d["cut"] for a, d in trail(settings, member.allocation_id))

    await world.until(written, "the cut is written down")


@pytest.mark.parametrize("ending", ["membership", "disabled", "removed", "released"])
async def test_it_is_cut_when_what_is_behind_it_ends(world: World, settings: Settings, ending: str) -> None:
    echo = await deployed(world, "tail")
    (tail,) = await echo.tails()
    async with service() as behind, person(world, "ada") as ada, person(world, "bob") as bob:
        world.node.service_port = behind.port
        async with (
            tunnel(ada.client, tail.id, "whisper") as (connection, stream),
            tunnel(bob.client, (await head_of(echo)).id) as (others, _),
        ):
            assert await connection[0].readline() == await others[0].readline() == b"hello\n"
            match ending:
                case "membership":
                    (role,) = await world.admin.memberships.list(user_id=ada.user.id).all()
                    await world.admin.memberships.delete(role.id)
                case "disabled":
                    await world.admin.users.update(ada.user.id, disabled=True)
                case "removed":
                    await echo.run("remove", tail)
                case "released":
                    await world.admin.allocations.release(tail.allocation_id, force=True)
            await closed_by(world, settings, connection, stream, tail)
            others[1].write(BLOCK)
            others[1].write_eof()
            assert len(await others[0].read()) == 65 + len(BLOCK), "nobody else is cut"
        if ending in {"membership", "removed", "released"}:
            with pytest.raises(ApiError) as again:
                await ada.client.open_port(tail.id, "whisper")
            expected = {"membership": (404, "there is no member"), "removed": (409, "was removed")}
            status, words = expected.get(ending, (409, "is releas"))
            assert again.value.status == status
            assert words in again.value.detail


async def test_an_agent_that_is_away_and_a_port_where_nothing_listens(world: World) -> None:
    echo = await deployed(world)
    head = await head_of(echo)
    async with person(world, "ada") as ada:
        # The simulated node refuses, as an agent does where nothing listens.
        with pytest.raises(
            ApiError, match=r"port voice \(7000\) of head cannot be reached through its node"
        ) as refused:
            await ada.client.open_port(head.id, "voice")
        assert (refused.value.status, refused.value.retryable) == (503, True)
        assert world.node.link is not None
        await world.node.link.close()

        async def is_away() -> bool:
            try:
                await ada.client.members.port(head.id, "voice")
            except ApiError as error:
                return error.detail == "the node of machine head is offline: its agent is not connected"
            return False

        await world.until(is_away, "the agent is away")
        assert (await refusal(ada.client, head.id, "voice")).code == "node_offline"


async def test_the_access_of_a_tunnel_opens_no_login(world: World, settings: Settings) -> None:
    echo = await deployed(world)
    head = await head_of(echo)
    async with service() as behind, person(world, "ada") as ada:
        world.node.service_port = behind.port
        async with tunnel(ada.client, head.id) as (connection, _):
            await converse(*connection, 1)
        ((_, granted), *_) = trail(settings, head.allocation_id)
        with pytest.raises(NotFoundError):
            await ada.client.open_stream(granted["grant"], head.allocation_id)
        assert {ask.port for ask in world.node.streams.values()} == {7000}


async def test_an_instance_says_how_its_ports_are_reached(world: World) -> None:
    echo = await deployed(world)
    notes = (await echo.instance()).access_notes
    assert [(note.command, note.text) for note in notes if note.command.startswith("gpuaas tunnel")] == [
        ("gpuaas tunnel greeter voice", "Says what it hears."),
        ("gpuaas tunnel greeter whisper", ""),
    ]
    stopped = await echo.run("stop")
    assert stopped.state == "succeeded"
    assert (await echo.instance()).access_notes == [], "nothing leads to what is stopped"
    head = await head_of(echo)
    refused = await refusal(world.admin, head.id, "voice")
    assert (refused.status, f"member {head.id} is stopped: start the instance first" in refused.detail) == (409, True)


@pytest.fixture
def cli(settings: Settings, world: World, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, environment={"GPUAAS_PROJECT": world.project.id, "GPUAAS_API_URL": settings.api_url})


async def test_the_command_line(world: World, cli: CommandLine, settings: Settings) -> None:
    echo = await deployed(world, "one", "two")
    async with service() as behind, person(world, "ada") as ada:
        world.node.service_port = behind.port
        words = ["login", "--api-url", settings.api_url, "--email", ada.user.email, "--password-stdin"]
        await asyncio.to_thread(cli.run, *words, stdin=PASSWORD)
        assert "choose one of voice (head), whisper (tail)" in await said(cli, "tunnel", "greeter", code=2)
        several = await said(cli, "tunnel", "greeter", "whisper", code=2)
        assert "2 members of greeter have port whisper: choose one of tail=one, tail=two" in several
        assert "next: gpuaas tunnel greeter whisper --member tail=one" in several
        assert "UDP" in await said(cli, "tunnel", "greeter", "drum", code=2)
        assert "declares no port 'nose'" in await said(cli, "tunnel", "greeter", "nose", code=4)
        assert "declares no port '22'" in await said(cli, "tunnel", "greeter", "22", code=4)
        assert "declares no port 'whisper' for head" in await said(
            cli, "tunnel", "greeter", "whisper", "--member", "head", code=4
        )
        assert "there is no instance 'nobody'" in await said(cli, "tunnel", "nobody", code=3)
        assert "it is no IP address" in await said(cli, "tunnel", "greeter", "voice", "--bind", "here", code=2)
        assert "from 1 to 65535" in await said(cli, "tunnel", "greeter", "voice", "--local-port", "70000", code=2)
        assert "--login is for external machines" in await said(
            cli, "tunnel", "greeter", "voice", "--login", "root", code=2
        )
        taken = await said(cli, "tunnel", "greeter", "voice", "--local-port", str(behind.port), code=5)
        assert f"cannot listen on 127.0.0.1:{behind.port}: it is taken; leave out --local-port" in taken
        assert world.node.streams == {}
        await _use(cli, behind)
        await _lose(cli, echo)


async def _use(cli: CommandLine, behind: Service) -> None:
    with ended_with(cli.start("tunnel", "greeter", "--member", "tail=two", "-o", "json")) as tunnel:
        await tunnel.ready()
        said = tunnel.said
        assert (said["local_address"], said["port"], said["number"]) == ("127.0.0.1", "whisper", 7003)
        for blocks in (1, 30):
            await converse(*await tunnel.connect(), blocks)
        assert behind.ended == [len(BLOCK), 30 * len(BLOCK)]
        assert tunnel.process.poll() is None


async def _lose(cli: CommandLine, echo: Echo) -> None:
    """A tunnel to a member that is removed ends, and says why."""
    (one, _) = await echo.tails()
    with ended_with(cli.start("tunnel", "greeter", "whisper", "--member", one.id)) as tunnel:
        assert tunnel.process.stdout is not None
        first = await asyncio.to_thread(tunnel.process.stdout.readline)
        address, _, rest = first.partition(" ")
        assert rest.strip() == f"leads to port whisper (7003) of tail {one.id}"
        reader, _ = await asyncio.open_connection(*address.split(":"))
        assert await reader.readline() == b"hello\n"
        await echo.run("remove", one)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        code, told = await tunnel.ended()
        assert code == 5
        assert "the platform closed a connection: the right behind this connection has ended" in told
        assert f"member {one.id} was removed" in told
