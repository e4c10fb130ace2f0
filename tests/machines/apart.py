"""Another host on the same machine: an LXD and an agent of their own, in a network namespace, that tests may kill.

Nobody else's machines are in the care of that LXD, and nothing of it is in the host's network."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpuaas_stack import platform_services
from gpuaas_stack.processes import recorded
from gpuaas_stack.progress import Progress
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import NetworkOfOne

NAME = "host-apart"
SERVICES = ("agent-apart", "lxd-keeper-apart")


@dataclass
class HostApart:
    stack: Stack
    """Its LXD; the platform is that of the other tests."""

    def kill_lxd(self) -> None:
        process = recorded(self.stack.settings.lxd_run_dir / "lxd.json")
        assert process is not None
        os.kill(process.pid, 9)

    def command(self, *words: str) -> list[str]:
        """A command in this host's network."""
        network = self.stack.settings.lxd_network
        assert network is not None
        return ["ip", "netns", "exec", network, *words]

    def run(self, *words: str) -> str:
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=True).stdout

    def leftovers(self) -> list[str]:
        """Everything that is in this LXD, by kind and name."""
        environment = {**os.environ, "LXD_DIR": str(self.stack.settings.lxd_socket.parent)}
        found = []
        for kind in ("instances", "networks", "network-acls", f"storage-pools/{self.stack.lxd.pool}/volumes/custom"):
            words = ["lxc", "query", f"/1.0/{kind}?recursion=1"]
            said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
            found += [f"{kind} {item['name']}" for item in json.loads(said) if item.get("managed", True)]
        return found


@contextmanager
def host_apart(stack: Stack, cli: CommandLine, platform: Platform) -> Iterator[HostApart]:
    """A node of the platform, and the only one that takes machines meanwhile."""
    own = _stack_of(stack)
    home = own.settings.lxd_socket.parent
    network = own.settings.lxd_network
    assert network is not None
    if home.exists():
        # An earlier run was killed: what runs there is ended before its network goes.
        subprocess.run(["ip", "netns", "add", network], check=False, capture_output=True)
        own.reset()
    with NetworkOfOne(network, stack.settings.api_port), own.machines_only(), ExitStack() as ends:
        token = cli.json("node", "join-token", NAME)["token"]
        platform_services.write_join_token(own.settings, token)
        services = (platform_services.agent_service(own.settings), platform_services.lxd_service(own.settings))
        for service, name in zip(services, SERVICES, strict=True):
            ends.callback(stack.supervision.remove_service, name)
            stack.supervision.ensure_service(replace(service, name=name))
        platform.wait_for_node(NAME, "ready")
        ends.callback(cli.run, "node", "retire", NAME)
        ends.callback(cli.run, "node", "uncordon", "host-one")
        cli.run("node", "cordon", "host-one")
        yield HostApart(own)
    for directory in (home, own.settings.state_dir, own.settings.lxd_run_dir):
        shutil.rmtree(directory)


def _stack_of(stack: Stack) -> Stack:
    settings = stack.settings
    state = settings.state_dir.with_name(f"{settings.state_dir.name}-apart")
    changes = {
        "state_dir": state,
        "environment": f"{settings.environment}-apart"[:16],
        "lxd_socket": Path(f"{state}-lxd") / "unix.socket",
        "lxd_run_dir": settings.lxd_run_dir.with_name(f"lxd-{settings.environment}"),
        "lxd_network": f"gpuaas-{settings.environment}-apart",
        "pool_size": "6GiB",
    }
    return Stack(settings.model_copy(update=changes), Progress())
