"""Forward a local port to a port that an app declares, through the platform."""

import ipaddress
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.commands.member import member_id
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.forwarding import LOOPBACK, LocalEnd, forward_through_platform
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.instances import Instance, Member
    from gpuaas_contract.manifest import Manifest, Port
    from gpuaas_contract.ports import MemberPort


async def tunnel(
    instance: Annotated[str, Parameter(help="The instance, by name or id.")],
    port: Annotated[
        str | None, Parameter(help="A port that the app declares, by name or number; default: the only one.")
    ] = None,
    /,
    *,
    member: Annotated[
        str | None,
        Parameter(help="The member, by id, machine name or COMPONENT=MACHINE; needed where several have the port."),
    ] = None,
    local_port: Annotated[int | None, Parameter(help="Local port to listen on; default: a free one.")] = None,
    bind: Annotated[
        str,
        Parameter(help="Local address to listen on. Whoever reaches another than the loopback uses your right."),
    ] = LOOPBACK,
    login: Annotated[
        str | None, Parameter(help="User to log in as on an external machine, with a key of your own; default: gpuaas.")
    ] = None,
    options: Options = DEFAULTS,
) -> int:
    """Reach a port of an app from here.

    Listens on a local address, which is printed, and carries each connection to the member's port, until Ctrl-C or
    until your right, the member or its machine ends. TCP only, and only ports that the app declares for people
    (gpuaas instance show INSTANCE lists them). On an external machine, which has no agent, it runs ssh with a key of
    your own instead.

    ```
    gpuaas tunnel first
    gpuaas tunnel first web --local-port 8080
    gpuaas tunnel first web --member two
    gpuaas tunnel first web -o json
    ```
    """
    here = _local_end(bind, local_port)
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        target = await _find_target(session, found, port, member)
        if not target.through_agent:
            from gpuaas_cli.forwarding_ssh import forward_over_ssh

            machine = await session.client.allocations.get(target.allocation_id)
            return await forward_over_ssh(machine, target, here, login, lambda end: _say_ready(target, end))
        if login is not None:
            raise CliError("--login is for external machines: a tunnel through the platform needs no login", USAGE)
        await forward_through_platform(session.client, target, here, lambda end: _say_ready(target, end))
    return 0


def _local_end(bind: str, local_port: int | None) -> LocalEnd:
    try:
        address = str(ipaddress.ip_address(bind))
    except ValueError:
        raise CliError(f"cannot listen on {bind!r}: it is no IP address", USAGE, hint="--bind 127.0.0.1") from None
    if local_port is not None and not 1 <= local_port <= 65_535:
        raise CliError(f"cannot listen on port {local_port}: a port is from 1 to 65535", USAGE)
    return LocalEnd(address, local_port or 0)


def _say_ready(target: "MemberPort", end: LocalEnd) -> None:
    said = {
        "local_address": end.address,
        "local_port": end.port,
        "instance_id": target.instance_id,
        "member_id": target.member_id,
        "allocation_id": target.allocation_id,
        "component": target.component_key,
        "port": target.name,
        "number": target.number,
        "through": "agent" if target.through_agent else "ssh",
    }
    if not output.document(said):
        print(f"{end} leads to port {target.name} ({target.number}) of {target.component_key} {target.member_id}")
        output.note("Ctrl-C ends it.")
    sys.stdout.flush()
    if not end.is_loopback:
        output.note(f"Warning: whoever reaches {end} from elsewhere uses the port by your right.")


async def _find_target(session: Session, instance: "Instance", port: str | None, member: str | None) -> "MemberPort":
    version = await session.client.app_versions.get(instance.app_slug, instance.versions.app)
    chosen = None
    if member is not None:
        chosen = await session.client.members.get(await member_id(session, instance, member))
        if chosen.instance_id != instance.id:
            raise CliError(
                f"{member} is no member of {instance.name}", USAGE, hint=f"gpuaas member list {instance.name}"
            )
    if port is None:
        port = _only_port(version.manifest, instance, chosen).name
    if chosen is None:
        chosen = await _only_member(session, instance, version.manifest, port)
    return await session.client.members.port(chosen.id, port)


def _only_port(manifest: "Manifest", instance: "Instance", member: "Member | None") -> "Port":
    """Return the one port that is for people, of the member where one is named."""
    for_people = [port for port in manifest.ports if port.protocol == "tcp" and not port.clients]
    ports = [port for port in for_people if member is None or port.component == member.component_key]
    if len(ports) == 1:
        return ports[0]
    whose = instance.app_slug if member is None else f"{instance.app_slug} for {member.component_key}"
    if not ports:
        raise CliError(f"{whose} declares no TCP port for people: there is nothing to lead a tunnel to", USAGE)
    names = ", ".join(f"{port.name} ({port.component})" for port in ports)
    raise CliError(
        f"{whose} declares several ports: choose one of {names}", USAGE, hint=_again(instance, ports[0].name)
    )


async def _only_member(session: Session, instance: "Instance", manifest: "Manifest", port: str) -> "Member":
    """Return the one member whose component has the port. The platform refuses a port that none has, in its words."""
    declared = {p.component for p in manifest.ports if port == p.name or (port == str(p.number) and not p.clients)}
    # A number may be chosen by an input: then all members with such a port may have it.
    if port.isdecimal():
        declared |= {p.component for p in manifest.ports if p.number_input and port == str(_chosen(instance, p))}
    members = await session.client.instances.members(instance.id, removed=False).all()
    fitting = [member for member in members if not declared or member.component_key in declared]
    if not fitting:
        raise CliError(f"instance {instance.name} is {instance.status}: no member of it has port {port}", USAGE)
    if len(fitting) == 1 or not declared:
        return fitting[0]
    machines = {a.id: a.name async for a in session.client.allocations.list(project_id=instance.project_id)}
    named = ", ".join(f"{m.component_key}={machines.get(m.allocation_id, m.allocation_id)}" for m in fitting)
    first = f"{fitting[0].component_key}={machines.get(fitting[0].allocation_id, fitting[0].allocation_id)}"
    detail = f"{len(fitting)} members of {instance.name} have port {port}: choose one of {named}"
    raise CliError(detail, USAGE, hint=_again(instance, port, first))


def _chosen(instance: "Instance", port: "Port") -> object:
    return instance.inputs.get(port.number_input or "", port.number)


def _again(instance: "Instance", port: str, member: str | None = None) -> str:
    return f"gpuaas tunnel {instance.name} {port}" + (f" --member {member}" if member else "")
