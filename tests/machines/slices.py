"""Machines for tests: made and released several at a time, as people do it through the command line."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.command_line import CommandLine

SMALL = ["--cpus", "1", "--memory-mib", "512", "--disk-gib", "2"]
BOOT = "stat -c %Y /proc/1; cat /etc/ssh/ssh_host_ed25519_key.pub"
"""Says when the machine has started, and which one it is."""


def make(cli: CommandLine, *names: str, shape: list[str] = SMALL) -> dict[str, dict[str, Any]]:
    """Active machines, by their names."""

    def one(name: str) -> dict[str, Any]:
        return dict(cli.json("allocation", "create", "--name", name, *shape, "--wait"))

    with ThreadPoolExecutor(max(1, len(names))) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def release(cli: CommandLine, *machines: str, force: bool = False) -> None:
    words = ["--yes", "--wait", *(["--force"] if force else [])]

    def one(machine: str) -> str:
        return str(cli.json("allocation", "release", machine, *words)["status"])

    with ThreadPoolExecutor(max(1, len(machines))) as pool:
        assert set(pool.map(one, machines)) <= {"released"}


def usage(cli: CommandLine, machine: str) -> dict[str, dict[str, Any]]:
    records = cli.json("allocation", "usage", machine)
    assert len({record["kind"] for record in records}) == len(records), "an interval was counted twice"
    return {record["kind"]: record for record in records}
