"""The host's own sshd: its settings, a reload, and the proof that the reload took effect."""

import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path

from gpuaas_agent.commands import call, run
from gpuaas_agent.errors import PermanentError
from gpuaas_agent.host_config import SshdSettings, parse_sshd_settings

UNITS = ("ssh.service", "sshd.service")
PID_FILE = Path("/run/sshd.pid")
CERTIFICATE_TYPE = "ssh-ed25519-cert-v01@openssh.com"
LOOPBACK = "127.0.0.1"


def has_systemd() -> bool:
    return Path("/run/systemd/system").exists()


def _read_pid() -> int:
    return int(PID_FILE.read_text())


async def read_settings() -> SshdSettings:
    return parse_sshd_settings(await run("sshd", "-T"))


async def reload() -> None:
    """Have sshd read its files anew. Open connections stay; new ones find the new settings."""
    await run("sshd", "-t")
    if has_systemd():
        for unit in UNITS:
            if (await call("systemctl", "is-active", "--quiet", unit)).ok:
                await run("systemctl", "reload", unit)
                return
    try:
        os.kill(_read_pid(), signal.SIGHUP)
    except (OSError, ValueError) as error:
        raise PermanentError(f"cannot reload sshd: no unit of it is active, and {PID_FILE}: {error}") from error


async def read_certificate(port: int) -> str:
    """Read the host certificate that sshd shows now, in OpenSSH's form without a comment; empty where it has none."""
    found = await call("ssh-keyscan", "-c", "-T", "5", "-t", "ed25519", "-p", str(port), LOOPBACK)
    return parse_certificate(found.stdout)


def parse_certificate(text: str) -> str:
    """Find the certificate in a line of ssh-keyscan, which omits the host's name before it, or may not."""
    for line in text.splitlines():
        words = line.split()
        for kind, encoded in pairwise(words):
            if kind == CERTIFICATE_TYPE:
                return f"{kind} {encoded}"
    return ""


async def wait_for_certificate(port: int, certificate: str, *, seconds: float) -> None:
    wanted = " ".join(certificate.split()[:2])
    deadline = asyncio.get_running_loop().time() + seconds
    while await read_certificate(port) != wanted:
        if asyncio.get_running_loop().time() > deadline:
            raise PermanentError(f"sshd on port {port} did not show the new host certificate within {seconds:.0f} s")
        await asyncio.sleep(0.1)
