"""The firewall of an environment as the kernel has it."""

import subprocess

from gpuaas_agent.firewall import table_name


def firewalls(environment: str) -> list[str]:
    """The tables of an environment: one while it is up, none otherwise."""
    done = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line == f"table inet {table_name(environment)}"]
