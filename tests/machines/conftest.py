"""A stack of its own for the machine tests: platform, agent and real slices, without any app."""

import fcntl
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpuaas_stack import platform_services
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.progress import Progress
from gpuaas_stack.service import Service
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from gpuaas_stack.supervision import Supervision
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.slices import release
from tests.machines.stand_in import TAG
from tests.support.firewall import firewalls

# Runs beside each other need machines, ports and addresses of their own: give each its own slot.
SLOT = int(os.environ.get("GPUAAS_MACHINES_SLOT", "0"))
ENVIRONMENT = f"machines{SLOT}"
FIRST_PORT = 8490 + 10 * SLOT


@pytest.fixture(scope="session")
def alone() -> Iterator[None]:
    """Two runs at once would take each other's machines away: the second waits for the first."""
    with Path(f"/var/tmp/gpuaas-{ENVIRONMENT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def stack(alone: None) -> Iterator[Stack]:
    """Empty at the start, whatever an earlier run left; at the end nothing may be left, and that is checked."""
    settings = Settings(
        state_dir=Path(f"/var/lib/gpuaas-{ENVIRONMENT}"),
        environment=ENVIRONMENT,
        api_port=FIRST_PORT,
        postgres_port=FIRST_PORT + 1,
        openbao_port=FIRST_PORT + 2,
        openbao_cluster_port=FIRST_PORT + 3,
        registry_port=FIRST_PORT + 4,
        subnet=f"10.{89 + SLOT}.0.0/16",
        pool_size="12GiB",
        terminal_idle_seconds=10,
        longest_pause=1,
        app_dirs=(),
    )
    stack = Stack(settings, Progress())
    stack.reset()
    stack.up()
    yield stack
    left = leftovers()
    stack.reset()
    left += traces(settings)
    assert left == [], f"the machine tests left {left} behind"


def traces(settings: Settings) -> list[str]:
    """List what the host itself still has of this environment: routes, rules, bridges, devices, mounts, processes."""
    routes = subprocess.run(["ip", "-4", "route", "show"], capture_output=True, text=True, check=True).stdout
    prefix = str(settings.subnet.network_address).removesuffix(".0.0") + "."
    left = [f"route {line.strip()}" for line in routes.splitlines() if f" {prefix}" in f" {line}"]
    left += firewalls(settings.environment)
    left += [f"device {path}" for path in settings.gpu_dir.glob("*")]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    # As a whole word: another run's pool may have a name that begins with this one's.
    left += [f"mount {line}" for line in mounts if settings.storage_pool in re.split(r"[ /]", line)]
    left += [f"process of {state.name}" for state in Supervision(settings.state_dir).states() if state.running]
    return left


@pytest.fixture(scope="session")
def cli(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    cli = CommandLine(tmp_path_factory.mktemp("home"))
    login = ["login", "--api-url", stack.settings.api_url, "--email", ADMIN_EMAIL, "--password-stdin"]
    cli.run(*login, stdin=stack.settings.admin_password_file.read_text())
    cli.json("tenant", "create", "acme")
    cli.json("project", "create", "research", "--tenant", "acme")
    return cli


@pytest.fixture(scope="session")
def platform(stack: Stack) -> Iterator[Platform]:
    platform = Platform(stack.settings)
    yield platform
    platform.close()


@pytest.fixture(scope="session")
def node(stack: Stack, cli: CommandLine, platform: Platform) -> str:
    platform_services.write_join_token(stack.settings, cli.json("node", "join-token", "host-one")["token"])
    stack.start_agent()
    platform.wait_for_node("host-one", "ready")
    return "host-one"


@pytest.fixture(autouse=True)
def machines_released(cli: CommandLine, platform: Platform) -> Iterator[None]:
    """A test that failed leaves no machine that makes the next one fail."""
    before = live_machines(platform)
    yield
    if left := live_machines(platform) - before:
        release(cli, *left, force=True)


def live_machines(platform: Platform) -> set[str]:
    found = platform.ask(lambda client: client.allocations.list().all())
    return {machine.id for machine in found if machine.status != "released"}


def leftovers() -> list[str]:
    """Everything in LXD that has the tag of these tests, by kind and name."""
    kinds = {
        "instance": "/1.0/instances",
        "network": "/1.0/networks",
        "acl": "/1.0/network-acls",
        "volume": f"/1.0/storage-pools/gpuaas-{ENVIRONMENT}/volumes/custom",
    }
    found = []
    for kind, path in kinds.items():
        answer = subprocess.run(["lxc", "query", f"{path}?recursion=1"], capture_output=True, text=True, check=True)
        for item in json.loads(answer.stdout):
            if (item["config"] or {}).get(TAG) == ENVIRONMENT:
                found.append(f"{kind} {item['name']}")
    return found


def pid_of(stack: Stack, service: str) -> int:
    (state,) = [state for state in stack.supervision.states() if state.name == service]
    assert state.process is not None
    return state.process.pid


def kill(stack: Stack, service: str) -> None:
    """As a crash does it; the supervisor starts it again."""
    os.kill(pid_of(stack, service), 9)


def kill_and_start(stack: Stack, service: str) -> None:
    """At once, also what dies often: the supervisor's pauses grow, but not for a changed service.

    Another kill may come while it still starts, or is not even there again."""
    wish = Service.from_json((stack.supervision.services_dir / f"{service}.json").read_text())
    for state in stack.supervision.states():
        if state.name == service and state.process is not None and state.running:
            with suppress(ProcessLookupError):
                os.kill(state.process.pid, 9)
    deaths = int(wish.env.get("DEATHS", "0")) + 1
    stack.supervision.ensure_service(replace(wish, env={**wish.env, "DEATHS": str(deaths)}))


def pytest_sessionstart(session: pytest.Session) -> None:
    if os.geteuid() != 0:
        pytest.exit("the machine tests make machines, which takes root", returncode=1)
