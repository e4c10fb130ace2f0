"""Several real slices for the tests of the machine layer, and words to look at what runs on them."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lxc_machine import (
    POOL,
    LxcMachine,
    launch,
    machine_address,
    machine_name,
    make_environment,
    read_dpkg_status,
    remove_environment,
)

from slurm_app.bundle import cache_directory, make_bundle
from slurm_app.phases import Evidence, Phase
from slurm_app.scope import Scope

# Everything on the machine that a removal must put back: packages, accounts, every path, the content of /etc.
# Left out: what belongs to the kernel, to people, or to the logs.
EVERYTHING = r"""
export LC_ALL=C
dpkg-query -W -f 'package ${binary:Package} ${Version} ${db:Status-Status}\n' | sort
sed 's/^/passwd /' /etc/passwd; sed 's/^/group /' /etc/group
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp \
    -o -path /var/log -o -path /mnt \) -prune -o -printf 'path %p %y %m %U:%G %l\n' | sort
find /etc -xdev -type f -exec sha256sum {} + | sort | sed 's/^/content /'
find /run -xdev -maxdepth 1 -printf 'run %f\n' | grep -v gpuaas-step | sort
systemctl list-units --all --no-legend --plain --type=service,socket,timer | awk '{ print "unit", $1, $2, $3 }' |
    grep -v gpuaas-test- | sort
ip route show table all | sed 's/^/route /'
"""
# All that differs after an install and a removal, each with its reason.
HARMLESS = {
    "  /etc/passwd-": "the previous version, kept by useradd",
    "  /etc/group-": "the previous version, kept by groupadd",
    "  /etc/shadow-": "the previous version, kept by useradd",
    "  /etc/gshadow-": "the previous version, kept by groupadd",
    "path /var/cache/ldconfig/aux-cache ": "cache of ldconfig",
    "path /var/lib/ucf/hashfile.": "the previous versions of ucf's registry",
    "run adduser": "lock of adduser",
    "unit systemd-networkd-wait-online.service": "started by the first unit that wants the network",
}


async def everything(machine: LxcMachine) -> set[str]:
    result = await machine.read(EVERYTHING, timeout=60)
    assert result.ok, result.stderr
    return set(result.stdout.splitlines())


def differences(before: set[str], after: set[str]) -> list[str]:
    return sorted(line for line in before ^ after if not any(harmless in line for harmless in HARMLESS))


async def run(phases: Iterable[Phase], scope: Scope, *, title: str) -> dict[str, Evidence]:
    evidence: dict[str, Evidence] = {}
    began = time.monotonic()
    print(f"\n{title}")
    for phase in phases:
        started = time.monotonic()
        evidence[phase.key] = await phase.run(scope)
        print(f"  {phase.key:20} {time.monotonic() - started:6.2f} s")
    print(f"  {'in all':20} {time.monotonic() - began:6.2f} s", flush=True)
    return evidence


async def wait_for(machine: LxcMachine, what: str, script: str, *, seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    while True:
        result = await machine.read(script)
        if result.ok:
            return result.stdout
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}: {result.stdout}{result.stderr}"
        await asyncio.sleep(0.1)


def assert_clean(evidence: dict[str, Evidence]) -> None:
    for found in evidence["prove-removal"]["receipts"]:
        assert found["clean"] is True, found
        assert {check["check"] for check in found["checks"]} >= {"packages", "ports", "paths", "logs", "fences"}


@asynccontextmanager
async def machines(directory: Path, gpus: dict[str, int]) -> AsyncIterator[tuple[dict[str, LxcMachine], str]]:
    """One slice for each word, and the digest of the bundle that fits them."""
    if not POOL:
        pytest.skip("needs machines: make machines")
    await make_environment()
    try:
        places = {word: (machine_name(word), machine_address(10 + n)) for n, word in enumerate(gpus)}
        await asyncio.gather(*(launch(n, address=a, gpus=gpus[word]) for word, (n, a) in places.items()))
        status = directory / "status"
        status.write_text(await read_dpkg_status(places[next(iter(gpus))][0]))
        bundle = make_bundle(output=directory / "bundle.tar", dpkg_status=status, cache=cache_directory())
        found = {word: LxcMachine(n, a, {bundle.digest: Path(bundle.path)}) for word, (n, a) in places.items()}
        for machine in found.values():
            await machine.deliver(bundle.digest)
        yield found, bundle.digest
    finally:
        if not os.environ.get("GPUAAS_KEEP_MACHINES"):
            await remove_environment()
