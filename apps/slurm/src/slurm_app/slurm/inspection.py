"""Inspection of a machine before an operation is requested: everything that would stand in the way.

The observer may have no rights on the machine: paths that it cannot read count as present, not as absent.
"""

from dataclasses import dataclass

from gpuaas_contract.findings import Finding, FindingSource, Severity
from gpuaas_sdk import MachineFacts, ObservedMachine, read_facts
from gpuaas_sdk.owned.snapshot import LISTENING_PORTS
from slurm_app.slurm.facts import clock_difference
from slurm_app.slurm.packages import (
    ANOTHER_NAME,
    FOREIGN_PACKAGES,
    FOREIGN_TREES,
    PEOPLE_NAMED_LIKE_DAEMONS,
    PORTS,
)
from slurm_app.slurm.roles import Role, memory_needed
from slurm_app.slurm.script import STATE_DIRECTORY, quoted

RELEASE = ("debian", "12", "x86_64")
"""The system that the packages of the bundle are made for."""
DISK_MIB = {Role.CONTROLLER: 1500, Role.WORKER: 700}

_SCRIPT = f"""
{LISTENING_PORTS}
listening_ports | sed 's/^/port=/'
dpkg-query -W -f '${{db:Status-Status}} ${{Package}}\\n' | sed -n 's/^installed /package=/p'
for tree in {quoted(*FOREIGN_TREES)}; do
    if [ -e "$tree" ]; then
        if ! find "$tree" -maxdepth 2 2>/dev/null | tail -n 3 | sed 's/^/path=/'; then echo "unreadable=$tree"; fi
    fi
done
if [ -e {STATE_DIRECTORY} ]; then echo "record=yes"; fi
{{
{PEOPLE_NAMED_LIKE_DAEMONS}
}} | sed 's/^person /person=/'
"""


@dataclass(frozen=True, slots=True)
class Inspection:
    facts: MachineFacts
    ports: frozenset[int]
    packages: frozenset[str]
    paths: tuple[str, ...]
    ours: bool
    people: tuple[str, ...] = ()


def app_error(code: str, message: str, pointer: str, action: str) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        code=code,
        message=message,
        pointer=pointer,
        action=action,
        source=FindingSource.APP,
    )


def findings(host: str, seen: Inspection, roles: frozenset[Role], pointer: str) -> list[Finding]:
    """Everything at once. On a machine that the app is on already, its own files and packages are no finding."""
    facts = seen.facts
    found = []
    if (facts.os, facts.os_version, facts.architecture) != RELEASE:
        found.append(
            app_error(
                "bundle_does_not_fit",
                f"{host} runs {facts.os} {facts.os_version} on {facts.architecture}; "
                f"the packages are for {' '.join(RELEASE)}",
                pointer,
                "choose a machine with the image that the packages were made for",
            )
        )
    if facts.init != "systemd":
        found.append(
            app_error("no_systemd", f"{host} does not run systemd but {facts.init}", pointer, "choose another")
        )
    if facts.hostname != host:
        message = f"{host} calls itself {facts.hostname}; Slurm needs one name"
        found.append(app_error("hostname_mismatch", message, pointer, "give the machine the name of its allocation"))
    memory = memory_needed(roles)
    if facts.memory_mib < memory:
        message = f"{host} has {facts.memory_mib} MiB of memory; {memory} are needed"
        found.append(app_error("too_little_memory", message, pointer, "choose a larger machine, or resize this one"))
    disk = sum(DISK_MIB.get(role, 0) for role in roles)
    if facts.disk_free_mib < disk:
        message = f"{host} has {facts.disk_free_mib} MiB of disk free; {disk} are needed"
        found.append(app_error("too_little_disk", message, pointer, "make room, or choose a larger machine"))
    if seen.people:
        message = f"{host} has people who are called like daemons of the cluster: {', '.join(seen.people)}"
        found.append(app_error("name_of_daemon", message, pointer, f"{ANOTHER_NAME}; or choose another machine"))
    if seen.ours:
        return found
    if others := sorted(name for name in seen.packages if FOREIGN_PACKAGES.match(name)):
        message = f"{host} has another scheduler or database: {', '.join(others)}"
        found.append(app_error("other_scheduler", message, pointer, "remove it, or choose another machine"))
    if seen.paths:
        message = f"{host} has files of its own: {', '.join(seen.paths)}"
        found.append(app_error("foreign_files", message, pointer, "move them away, or choose another machine"))
    if taken := sorted(seen.ports & set(PORTS)):
        message = f"on {host} something listens on {', '.join(map(str, taken))}"
        found.append(app_error("port_taken", message, pointer, "stop it, or choose another machine"))
    return found


def clock_findings(clocks: dict[str, float]) -> list[Finding]:
    message = clock_difference(clocks)
    return [app_error("clock_skew", message, "", "set the clocks by the same time servers")] if message else []


def unreadable(host: str, why: str, pointer: str) -> Finding:
    return app_error("machine_unknown", f"cannot look at {host}: {why}", pointer, "make sure that it runs and answers")


async def inspect(machine: ObservedMachine) -> Inspection:
    facts = await read_facts(machine, _SCRIPT)
    more = facts.more
    return Inspection(
        facts=facts,
        ports=frozenset(int(port) for port in more.get("port", [])),
        packages=frozenset(more.get("package", [])),
        paths=tuple(sorted([*more.get("path", []), *more.get("unreadable", [])])),
        ours="record" in more,
        people=tuple(sorted(more.get("person", []))),
    )
