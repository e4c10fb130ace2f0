"""A tunnel to a service on a real machine, through the real agent: what flows, and what cuts it."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import GPUAAS, CommandLine
from tests.machines.conftest import kill
from tests.machines.controller import app_on
from tests.machines.people import Person, make_person
from tests.machines.slices import make, release
from tests.machines.stand_in import StandIn
from tests.machines.tunnels import made_ready, start_service
from tests.support.tcp_services import converse
from tests.support.tunnels import OpenTunnel, ended_with
from tests.support.waiting import until, wait_until

CONNECTED = "ss --no-header --tcp state established sport = :7000"
CUT = "the platform closed a connection: the right behind this connection has ended"


async def test_a_port_is_reached_for_as_long_as_the_right_lasts(
    stack: Stack, cli: CommandLine, platform: Platform, node: str, tmp_path: Path
) -> None:
    made = make(cli, "reached")["reached"]
    machine = StandIn(made["id"].replace("_", "-"))
    ada = make_person(stack, cli, tmp_path, "ada")
    with ExitStack() as open_tunnels:
        async with app_on(stack, made["project_id"], made["id"]) as app:
            member, words = await made_ready(app), ["tunnel", app.instance.name, "voice", "-o", "json"]
            tunnel = open_tunnels.enter_context(ended_with(ada.start(str(GPUAAS), *words)))
            others = open_tunnels.enter_context(ended_with(cli.start(*words, "--project", "research")))
            await tunnel.ready()
            await others.ready()
            assert tunnel.said["member_id"] == member.id
            await nothing_listens(tunnel)
            machine.sh(start_service(7000))
            await converse(*await tunnel.connect(), 1)
            sizes = (0, 3, 40, 800)
            await asyncio.gather(*[converse(*await tunnel.connect(), blocks) for blocks in sizes])
            undeclared = ada.cli.call("tunnel", app.instance.name, "22")
            assert (undeclared.returncode, "declares no port '22'" in undeclared.stderr) == (4, True)
            await agent_killed(stack, platform, tunnel)
            reader, _ = await others.connect()
            assert await reader.readline() == b"hello\n"
            await role_lost(cli, machine, ada, tunnel)
        # The instance is decommissioned: its member is removed.
        assert await asyncio.wait_for(reader.read(), 60) == b""
        code, said = await others.ended()
        assert (code, CUT in said, f"member {member.id} was removed" in said) == (5, True, True), said
        wait_until(lambda: machine.sh(CONNECTED) == "", "the service has lost all connections")
    ada.close()
    release(cli, "reached")


async def nothing_listens(tunnel: OpenTunnel) -> None:
    """Said, and the tunnel stays for when something does."""
    reader, _ = await tunnel.connect()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    assert tunnel.process.stderr is not None
    said = await asyncio.to_thread(tunnel.process.stderr.readline)
    assert "port voice (7000) of reached cannot be reached through its node" in said
    assert "nothing listens on port 7000 of the machine's address" in said


async def agent_killed(stack: Stack, platform: Platform, tunnel: OpenTunnel) -> None:
    """Lose what it carried; the next connection is carried by its successor."""
    reader, _ = await tunnel.connect()
    assert await reader.readline() == b"hello\n"
    kill(stack, "agent")
    assert await asyncio.wait_for(reader.read(), 60) == b""

    async def is_back() -> bool:
        reader, writer = await tunnel.connect()
        said = await reader.readline()
        writer.close()
        return said == b"hello\n"

    await until(is_back, "the agent is back", 120, 0.2)
    platform.wait_for_node("host-one", "ready")
    await converse(*await tunnel.connect(), 1)
    assert tunnel.process.poll() is None


async def role_lost(cli: CommandLine, machine: StandIn, ada: Person, tunnel: OpenTunnel) -> None:
    """The connection is cut and the command ends, and nobody else's."""
    reader, _ = await tunnel.connect()
    assert await reader.readline() == b"hello\n"
    wait_until(lambda: len(machine.sh(CONNECTED).splitlines()) == 2, "the service has the two connections")
    (membership,) = [each for each in cli.json("membership", "list") if each["user_id"] == user_id_of(ada)]
    cli.run("membership", "delete", membership["id"], "--yes")
    assert await asyncio.wait_for(reader.read(), 60) == b""
    code, said = await tunnel.ended()
    assert (code, CUT in said, "there is no member" in said) == (3, True, True), said
    wait_until(lambda: len(machine.sh(CONNECTED).splitlines()) == 1, "the service has lost one, and one only")


def user_id_of(person: Person) -> str:
    return str(person.api.get("/v1/auth/session").json()["user_id"])
