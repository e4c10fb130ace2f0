"""Answers of a machine, for tests of "given facts, expect commands"."""

from gpuaas_sdk import CommandResult, MachineFacts
from gpuaas_sdk.machines.facts import parse_facts

FACTS = """\
hostname=node-1
os=debian
os_version=12
architecture=x86_64
cpus=2
memory_mib=2048
disk_free_mib=4000
gpu=/dev/nvidia0
gpu=/dev/nvidia1
uid_map=0:100000
cgroup=v1
init=systemd
clock=1700000000
"""
SLURMD_C = "NodeName=node-1 CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=24105\n"


def facts_of(text: str) -> MachineFacts:
    """As read by a controller whose clock says the same."""
    return parse_facts(text, 1_700_000_000, 1_700_000_000)


def said(text: str) -> CommandResult:
    return CommandResult(0, text, "")
