"""The state of a real machine, for the tests of the machine layer."""

import shlex

from gpuaas_contract.base import JsonObject

from .lxc_machine import LxcMachine

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


async def wait_for(machine: LxcMachine, what: str, script: str, *, seconds: int = 60) -> str:
    """Until the script succeeds; it is repeated on the machine, because every call from outside costs more."""
    poll = f"""
        end=$((SECONDS + {seconds}))
        until said=$(bash -euo pipefail -c {shlex.quote(script)} 2>&1); do
            if [ "$SECONDS" -ge "$end" ]; then echo "$said"; exit 1; fi
            sleep 0.1
        done
        echo "$said"
    """
    result = await machine.read(poll, timeout=seconds + 60)
    assert result.ok, f"waited {seconds} s for {what}: {result.stdout}{result.stderr}"
    return result.stdout


def assert_clean(result: JsonObject) -> None:
    """Of a teardown: each of its receipts."""
    receipt = result["receipt"]
    assert receipt["ok"] is True, receipt
    for found in receipt["members"]:
        assert found["clean"] is True, found
        assert {check["check"] for check in found["checks"]} >= {"packages", "ports", "paths", "logs", "fences"}
