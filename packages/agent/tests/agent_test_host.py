"""The host's side of the machine tests: the agent as a process, and what exists in LXD."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = "agenttest"
RANGE = "10.85.0.0/16"
DEVICES = Path("/dev/gpuaas-agenttest")
"""Stand-in GPUs; LXD takes devices from below /dev only."""


class AgentProcess:
    """The agent as it runs on a host: a process that can be killed."""

    def __init__(self, environ: dict[str, str], log: Path) -> None:
        self.environ = environ
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpuaas_agent.main", "run"], env=self.environ, stderr=log, stdout=log
            )

    async def end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        return await asyncio.to_thread(process.wait, 30)


def reap(pool: str) -> None:
    for instance in list_tagged("list"):
        run("lxc", "delete", "-f", instance)
    for network in list_tagged("network", "list"):
        run("lxc", "network", "delete", network)
    for acl in list_tagged("network", "acl", "list"):
        run("lxc", "network", "acl", "delete", acl)
    run("nft", f"table inet gpuaas-{ENVIRONMENT}; delete table inet gpuaas-{ENVIRONMENT}")
    for volume in list_tagged("storage", "volume", "list", pool):
        run("lxc", "storage", "volume", "delete", pool, volume)


def list_tagged(*command: str) -> list[str]:
    found = json.loads(run("lxc", *command, "-f", "json"))
    key = "user.gpuaas.environment"
    return [item["name"] for item in found if (item["config"] or {}).get(key) == ENVIRONMENT]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
