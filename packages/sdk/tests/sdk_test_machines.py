"""Real sshd processes behind the client's seam: on this host, or in a slice; certificates by ssh-keygen."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from gpuaas_contract.access import AccessGrant, MachineAddress
from gpuaas_contract.operations import Claim
from gpuaas_sdk import GpuaasClient
from gpuaas_sdk.machines.ssh import SshMachine, SshMachineAccess

PRINCIPAL = "alc_1"
SSHD_CONFIG = """
HostKey {directory}/host
HostCertificate {directory}/host-cert.pub
TrustedUserCAKeys {directory}/authority.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
PidFile none
"""


class PipeStream:
    """sshd in inetd mode on the other end of two pipes stands for the platform's byte stream."""

    close_reason = ""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def receive(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(65536)

    async def close(self) -> None:
        # sshd has children that hold the pipes, too: the whole group goes.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        # Somebody must hear of a broken pipe, or the garbage collector logs it at a moment of its own choosing.
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(OSError):
            await self._process.stdin.wait_closed()


class SshdPlatform:
    """Grants access to one machine, as the platform would, with an authority of its own."""

    def __init__(self, directory: Path, start: list[str]) -> None:
        self.directory = directory
        self.start = start
        self.grants = 0
        self.streams: list[PipeStream] = []
        self.seconds = 300.0
        self.principal = PRINCIPAL
        self.user = "root"
        keygen("-t", "ed25519", "-N", "", "-f", directory / "authority")

    @property
    def operations(self) -> "SshdPlatform":
        return self

    async def access(self, operation_id: str, fencing_token: int, public_key: str) -> AccessGrant:
        self.grants += 1
        key = self.directory / f"user{secrets.token_hex(4)}.pub"
        key.write_text(public_key)
        keygen("-s", self.directory / "authority", "-I", operation_id, "-n", self.user, "-V", "-1m:+5m", key)
        return AccessGrant(
            id=f"acg_{self.grants}",
            login="root",
            certificate=key.with_name(f"{key.stem}-cert.pub").read_text(),
            host_authority=(self.directory / "authority.pub").read_text().strip(),
            machines=[
                MachineAddress(
                    allocation_id=PRINCIPAL, hostname="one", address="192.0.2.1", host_principal=self.principal
                )
            ],
            expires_at=datetime.now(UTC) + timedelta(seconds=self.seconds),
        )

    async def open_stream(self, grant_id: str, allocation_id: str) -> PipeStream:
        process = await asyncio.create_subprocess_exec(
            *self.start,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        stream = PipeStream(process)
        self.streams.append(stream)
        return stream

    async def cut(self) -> None:
        for stream in self.streams:
            await stream.close()

    async def machine(
        self, token: int = 1, *, operation: str = "op_1", member: str | None = None, instance: str = "ins_1"
    ) -> SshMachine:
        access = SshMachineAccess(cast(GpuaasClient, self), claim(token, operation, member, instance))
        await access.prepare()
        return cast(SshMachine, access.machine(PRINCIPAL))


def make_host_key(directory: Path, authority: Path, principal: str = PRINCIPAL) -> None:
    keygen("-t", "ed25519", "-N", "", "-f", directory / "host")
    keygen("-s", authority, "-I", "host", "-h", "-n", principal, directory / "host.pub")


def keygen(*arguments: str | Path) -> None:
    subprocess.run(["ssh-keygen", "-q", *map(str, arguments)], check=True, stdin=subprocess.DEVNULL)


def sshd_config(directory: Path) -> str:
    return SSHD_CONFIG.format(directory=directory)


def claim(token: int, operation: str, member: str | None = None, instance: str = "ins_1") -> Claim:
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        "id": operation,
        "instance_id": instance,
        "member_id": member,
        "project_id": "prj_1",
        "app_slug": "demo",
        "kind": "deploy",
        "input": {},
        "state": "running",
        "attempt": 1,
        # Later than any clock that a test lets jump.
        "deadline": now + timedelta(days=10_000),
        "requested_by": "usr_1",
        "correlation_id": f"cor_{operation}",
        "revision": 1,
        "created_at": now,
        "updated_at": now,
    }
    return Claim.model_validate({"operation": fields, "fencing_token": token, "lease_seconds": 15})


def have_sshd() -> bool:
    return shutil.which("sshd", path="/usr/sbin:/sbin") is not None
