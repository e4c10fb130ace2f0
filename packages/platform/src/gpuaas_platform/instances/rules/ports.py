"""Ports that an app declares: which of them people reach by a tunnel, on which members, and what they are told."""

from collections.abc import Iterable

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import AccessNote, InstanceStatus, MemberStatus
from gpuaas_contract.manifest import Manifest, Port
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import LONGEST_ID, Refusal
from gpuaas_platform.instances.records import InstanceView, MemberView

_CLOSED = {
    MemberStatus.PENDING: "is pending: nothing has been installed on it yet",
    MemberStatus.STOPPED: "is stopped: start the instance first",
    MemberStatus.REMOVING: "is being removed",
    MemberStatus.REMOVED: "was removed",
}
_USABLE = {InstanceStatus.RUNNING, InstanceStatus.UPDATING, InstanceStatus.UNKNOWN, InstanceStatus.DEGRADED}


def number_of(port: Port, inputs: JsonObject) -> int:
    """Return the number that the port has in an instance: an input may choose it."""
    chosen = inputs.get(port.number_input) if port.number_input is not None else None
    # A manifest may let people write more into its input than a port can be.
    valid = isinstance(chosen, int) and not isinstance(chosen, bool) and 1 <= chosen <= 65_535
    return chosen if valid and isinstance(chosen, int) else port.number


def find_port(manifest: Manifest, component: str, inputs: JsonObject, wanted: str) -> Port:
    """Find a port that a member of the component has for people, by its name or its number."""
    ports = [port for port in manifest.ports if port.component == component]
    found = [port for port in ports if wanted in {port.name, str(number_of(port, inputs))}]
    if not found:
        there = _list(f"{port.name} ({number_of(port, inputs)}/{port.protocol})" for port in ports if not port.clients)
        detail = f"{manifest.slug} declares no port {wanted[:LONGEST_ID]!r} for {component}, which has {there}"
        raise Refusal(Code.FORBIDDEN, detail, denied=True)
    tcp = [port for port in found if port.protocol == "tcp"]
    if not tcp:
        detail = f"port {found[0].name} of {component} is UDP: a tunnel carries TCP only"
        raise Refusal(Code.INVALID_REQUEST, detail)
    if tcp[0].clients:
        detail = f"port {tcp[0].name} of {component} is for {_list(tcp[0].clients)} of the app, not for people"
        raise Refusal(Code.FORBIDDEN, detail, denied=True)
    return tcp[0]


def _list(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


def require_open(member: MemberView) -> None:
    """Refuse where nothing can listen on the member."""
    if (why := _CLOSED.get(member.status)) is not None:
        raise Refusal(Code.INVALID_STATE, f"member {member.id} {why}", context={"status": member.status})


def port_notes(instance: InstanceView, status: InstanceStatus, manifest: Manifest) -> list[AccessNote]:
    """Say how to reach each port that is for people, below what the app itself says of its use."""
    if status not in _USABLE:
        return []
    return [
        AccessNote(
            title=f"Reach port {port.name} ({number_of(port, instance.inputs)}) of the {port.component}",
            command=f"gpuaas tunnel {instance.name} {port.name}",
            text=port.description,
        )
        for port in manifest.ports
        if port.protocol == "tcp" and not port.clients
    ]
