"""The state of the services, in a table for people or as JSON for programs."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.table import Table

from gpuaas_stack.processes import ProcessId
from gpuaas_stack.stack import Stack


def collect(stack: Stack) -> dict[str, Any]:
    supervisor = stack.supervision.running()
    guard = stack.supervision.guard()
    services = [
        {
            "name": state.name,
            "phase": state.phase if state.running or state.phase == "backing-off" else "dead",
            "pid": state.process.pid if state.process and state.running else None,
            "starts": state.starts,
            "last_exit": state.last_exit,
            "seconds": _age(state.process) if state.process and state.running else None,
        }
        for state in stack.supervision.states()
    ]
    answers = stack.lxd_daemon.answers()
    machines = stack.lxd.machines() if answers else []
    return {
        "environment": stack.settings.environment,
        "api_url": stack.settings.api_url,
        "ca_file": None if stack.settings.trusted_file is None else str(stack.settings.trusted_file),
        "state_dir": str(stack.settings.state_dir),
        "supervisor": supervisor.pid if supervisor else None,
        "guard": guard.pid if guard else None,
        "advice": advice(supervisor=supervisor is not None, guard=guard is not None, services=len(services)),
        "services": services,
        "lxd": answers,
        "machines": [{"name": item.name, "status": item.status} for item in machines],
        "up": supervisor is not None and bool(services) and all(item["phase"] == "ready" for item in services),
    }


def advice(*, supervisor: bool, guard: bool, services: int) -> str:
    """Say what is wrong with what keeps the services running, and what brings it back."""
    if supervisor and guard:
        return ""
    if supervisor:
        return (
            "Nothing guards the supervisor: its guard was killed, or an earlier version started it. All goes on; "
            "`make down` and `make up` bring a guard back."
        )
    if guard:
        return "The supervisor was killed. Its guard starts it again, with all services, within seconds."
    if services:
        return "The supervisor was killed with its guard, or the machine restarted. `make up` brings everything back."
    return ""


def _age(process: ProcessId) -> float:
    ticks = 100  # USER_HZ of every Linux that Debian supports
    with open("/proc/uptime") as uptime:
        return round(float(uptime.read().split()[0]) - process.started / ticks, 1)


def show(console: Console, status: dict[str, Any]) -> None:
    if status["supervisor"] is None and status["guard"] is None:
        console.print(f"The environment {status['environment']} is down.")
    if status["advice"]:
        console.print(status["advice"])
    table = Table("service", "state", "process", "running for", "starts", "last end", box=None, pad_edge=False)
    for service in status["services"]:
        age = time.strftime("%H:%M:%S", time.gmtime(service["seconds"])) if service["seconds"] else "-"
        table.add_row(
            service["name"],
            service["phase"],
            str(service["pid"] or "-"),
            age,
            str(service["starts"]),
            service["last_exit"] or "-",
        )
    if status["services"]:
        console.print(table)
    console.print(f"LXD {'answers' if status['lxd'] else 'is not running'}")
    for machine in status["machines"]:
        console.print(f"  machine {machine['name']}: {machine['status']}")
    if status["supervisor"] is not None:
        console.print(f"API {status['api_url']}, state and logs in {status['state_dir']}")
