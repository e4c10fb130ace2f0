"""The host itself as the machine of one allocation: handed over, given back.

Each call looks first and may be repeated after a crash at any point. The record on disk divides what is
finished (kept) from what an interrupted attempt left (removed and made anew). What was on the host before is
never touched; whoever has the host is root on it, so no more can be promised than that what we added is gone.
"""

import asyncio
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

from gpuaas_agent import host_users, sshd
from gpuaas_agent.api import PlatformApi
from gpuaas_agent.commands import call, run
from gpuaas_agent.errors import AgentError, PermanentError, RetryLaterError
from gpuaas_agent.files import part_of, write_atomically
from gpuaas_agent.host_config import (
    ARTIFACTS,
    CERTIFICATE,
    DROP_IN,
    HOST_KEY,
    KEYS,
    LEASE_SCRIPT,
    LEASES,
    OWN_PATHS,
    PEOPLE,
    PRINCIPALS,
    SSH_DIR,
    SUDOERS,
    WANTED_PEOPLE,
    SshdSettings,
    check_spec,
    check_sshd,
    drop_in,
    ending_lines,
    host_files,
    trust_files,
)
from gpuaas_agent.host_key import HostKey, check_certificate, make_host_key
from gpuaas_agent.host_record import HostRecord, HostRecordFile
from gpuaas_agent.inventory import read_address
from gpuaas_agent.machine_port import READ_LIMIT, SSH_PORT, check_port
from gpuaas_agent.people import SCRIPT, refusal_of, wanted_people
from gpuaas_agent.settings import Settings
from gpuaas_agent.slice_config import LEASE_SOURCE
from gpuaas_agent.slices import Progress
from gpuaas_contract.access import OBSERVER_LOGIN, OPERATOR_LOGIN
from gpuaas_contract.agent_link import OpenStream, PrepareHost, RenewTrust, RestartHost, SetUsers, SliceReport

log = logging.getLogger(__name__)

SSHD_SECONDS = 30
REBOOT_SECONDS = 300
CONNECT_SECONDS = 5
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostManager:
    def __init__(self, settings: Settings, api: PlatformApi) -> None:
        self._settings = settings
        self._api = api
        self._record = HostRecordFile(settings.state_dir)
        self._lock = asyncio.Lock()
        """There is one host, whatever allocation a task is for."""

    async def find(self, allocation_id: str) -> HostRecord | None:
        """Find the record of this allocation, if the host is completely handed over as it."""
        record = self._record.load()
        return record if record is not None and record.ready and record.allocation_id == allocation_id else None

    def artifacts_dir(self, allocation_id: str) -> Path:
        return ARTIFACTS

    async def report(self) -> list[SliceReport]:
        record = self._record.load()
        if record is None:
            return []
        finished = record.ready and DROP_IN.exists() and CERTIFICATE.exists()
        return [SliceReport(allocation_id=record.allocation_id, finished=finished, running=True)]

    async def open_port(self, message: OpenStream) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to this host's own sshd, wherever it listens, or to another port of its own address. What listens on
        the loopback only is nobody's to reach from elsewhere, unless the host is known by no other address."""
        if await self.find(message.allocation_id) is None:
            raise PermanentError(f"this host is not handed over as {message.allocation_id}")
        check_port(message.port)
        if message.port == SSH_PORT:
            address, port = sshd.LOOPBACK, (await sshd.read_settings()).port
        elif message.address == read_address():
            address, port = message.address, message.port
        else:
            raise PermanentError(f"{message.address} is not the address of this host")
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncio.open_connection(address, port, limit=READ_LIMIT)

    # -- handed over ------------------------------------------------------------------------------------

    async def ensure(self, spec: PrepareHost, task_id: str, progress: Progress) -> None:
        check_spec(spec)
        async with self._lock:
            await self._ensure(spec, task_id, progress)

    async def _ensure(self, spec: PrepareHost, task_id: str, progress: Progress) -> None:
        record = self._record.load()
        if record is not None and record.allocation_id != spec.allocation_id:
            # The platform knows better by now, so what removes it is on its way.
            raise RetryLaterError(f"this host is still handed over as {record.allocation_id}")
        if record is not None and record.ready:
            progress("ssh", "the host is prepared already")
            await self._wait_for_sshd()
            return
        if record is not None:
            progress("clean", "removing what an interrupted attempt left")
            await self._remove(record)
        try:
            await self._prepare(spec, task_id, progress)
        except AgentError:
            await self._remove_failed(spec.allocation_id)
            raise

    async def _prepare(self, spec: PrepareHost, task_id: str, progress: Progress) -> None:
        progress("check", "looking at the host's sshd, users and files")
        found = await self._check()
        made = [str(path) for path in (ARTIFACTS.parent, ARTIFACTS) if not path.exists()]
        record = self._record.save(HostRecord(spec.allocation_id, task_id, made=made))
        progress("identity", "making a host key and asking for its certificate")
        key = make_host_key(spec.allocation_id)
        certificate = await self._api.create_host_certificate(spec.allocation_id, key.public)
        check_certificate(certificate.certificate, key)
        progress("user", "making the users that people and observers log in as")
        await host_users.make_users()
        progress("files", "host key, certificate, authority, principals")
        for directory in (SSH_DIR, PRINCIPALS, LEASES, *map(Path, made)):
            directory.mkdir(mode=0o755, exist_ok=True)
        for file in host_files(spec, key.private, certificate):
            write_atomically(file.path, file.content.encode(), mode=file.mode)
        progress("sshd", "reloading sshd with a drop-in of ours")
        DROP_IN.parent.mkdir(exist_ok=True)
        write_atomically(DROP_IN, drop_in(spec.allocation_id, found).encode(), mode=0o644)
        await sshd.reload()
        progress("ssh", f"waiting for sshd on port {found.port}")
        await self._wait_for_sshd()
        self._record.save(replace(record, ready=True))

    async def _check(self) -> SshdSettings:
        """Look before anything is written: existing files and users are somebody else's."""
        taken = [str(path) for path in OWN_PATHS if path.exists()] + await host_users.find_traces()
        if taken:
            raise PermanentError(f"cannot take this host: it has {', '.join(taken)} already, not made by the agent")
        if not SUDOERS.parent.is_dir():
            raise PermanentError("cannot take this host: it has no sudo")
        found = await sshd.read_settings()
        check_sshd(found)
        return found

    async def _wait_for_sshd(self) -> None:
        port = (await sshd.read_settings()).port
        await sshd.wait_for_certificate(port, CERTIFICATE.read_text(), seconds=SSHD_SECONDS)

    async def _remove_failed(self, allocation_id: str) -> None:
        """Remove what a failed preparation left. Its own reason matters more than a failure here."""
        try:
            await self._clear(allocation_id, lambda _step, _message: None)
        except AgentError as error:
            log.warning("cannot remove what the failed preparation for %s left: %s", allocation_id, error)

    # -- people -----------------------------------------------------------------------------------------

    async def set_users(self, spec: SetUsers, progress: Progress) -> None:
        wanted = wanted_people(spec, [sshd.LOOPBACK])
        async with self._lock:
            if await self.find(spec.allocation_id) is None:
                raise PermanentError(f"this host is not handed over as {spec.allocation_id}")
            progress("users", f"{len(spec.users)} people")
            write_atomically(WANTED_PEOPLE, wanted.encode(), mode=0o644)
            paths = map(str, (PEOPLE, PRINCIPALS, KEYS, WANTED_PEOPLE))
            done = await call("/bin/sh", "-c", SCRIPT, "gpuaas-users", *paths)
            if not done.ok:
                raise refusal_of(done.said, "cannot set the people of this host")

    async def renew_trust(self, spec: RenewTrust, progress: Progress) -> None:
        async with self._lock:
            if await self.find(spec.allocation_id) is None:
                raise PermanentError(f"this host is not handed over as {spec.allocation_id}")
            progress("trust", f"authorities from version {spec.oldest} to {spec.newest}")
            public_key = " ".join((await run("ssh-keygen", "-y", "-f", str(HOST_KEY))).split()[:2])
            certificate = await self._api.create_host_certificate(spec.allocation_id, public_key)
            check_certificate(certificate.certificate, HostKey(private="", public=public_key))
            for file in trust_files(certificate):
                write_atomically(file.path, file.content.encode(), mode=file.mode)
            await sshd.reload()
            await self._wait_for_sshd()

    # -- leases -----------------------------------------------------------------------------------------

    async def list_doors(self) -> dict[str, Path]:
        record = self._record.load()
        return {record.allocation_id: LEASES} if record is not None and record.ready and LEASES.is_dir() else {}

    async def ensure_door(self, allocation_id: str) -> None:
        """Make sshd ask, also on a host that an older agent handed over."""
        async with self._lock:
            if await self.find(allocation_id) is None:
                raise PermanentError(f"this host is not handed over as {allocation_id}")
            text = DROP_IN.read_text()
            more = "".join(f"{line}\n" for line in ending_lines())
            if text.endswith(more) and LEASES.is_dir():
                return
            LEASES.mkdir(mode=0o755, exist_ok=True)
            write_atomically(LEASE_SCRIPT, LEASE_SOURCE.encode(), mode=0o755)
            write_atomically(DROP_IN, (text + more).encode(), mode=0o644)
            for login in (OPERATOR_LOGIN, OBSERVER_LOGIN):
                (PRINCIPALS / login).unlink(missing_ok=True)
            await sshd.reload()
            await self._wait_for_sshd()

    async def cut_sessions(self, allocation_id: str) -> None:
        if await self.find(allocation_id) is not None:
            done = await call("/bin/sh", "-c", LEASE_SOURCE, "gpuaas-leases", "cut", str(LEASES), OBSERVER_LOGIN)
            if not done.ok:
                raise RetryLaterError(done.said)

    # -- given back -------------------------------------------------------------------------------------

    async def clear(self, allocation_id: str, progress: Progress) -> None:
        async with self._lock:
            await self._clear(allocation_id, progress)

    async def _clear(self, allocation_id: str, progress: Progress) -> None:
        record = self._record.load()
        if record is None or record.allocation_id != allocation_id:
            progress("clear", "the host is not handed over as this allocation any more")
            return
        progress("clear", "closing sshd to the project, ending the user, removing files")
        await self._remove(record)
        progress("probe", "looking for what is left")
        if left := await self._find_left():
            raise PermanentError(f"cannot give the host back, as these remain: {'; '.join(left)}")
        self._record.remove()

    async def _remove(self, record: HostRecord) -> None:
        """Remove access first, then the users, then the rest."""
        if DROP_IN.exists():
            DROP_IN.unlink()
            await sshd.reload()
        of_people = (*SUDOERS.parent.glob(f"{SUDOERS.name}-*"), *SUDOERS.parent.glob(f".{SUDOERS.name}-*"))
        for path in (SUDOERS, part_of(SUDOERS), part_of(DROP_IN), *of_people):
            path.unlink(missing_ok=True)
        await host_users.remove_people()
        await host_users.remove_users()
        for path in (SSH_DIR, *(Path(made) for made in reversed(record.made))):
            if path != ARTIFACTS.parent:
                await asyncio.to_thread(_remove_tree, path)
            elif path.exists() and not os.listdir(path):
                path.rmdir()
        # Whoever was root here may have changed what the next one would be given.
        await asyncio.to_thread(_remove_tree, self._settings.artifact_cache)

    async def _find_left(self) -> list[str]:
        left = [str(path) for path in OWN_PATHS if path.exists()]
        left += await host_users.find_traces()
        found = await sshd.read_settings()
        for name in ("trustedusercakeys", "authorizedprincipalsfile", "authorizedprincipalscommand"):
            if str(SSH_DIR) in found.get(name):
                left.append(f"sshd still has {name} {found.get(name)}")
        if await sshd.read_certificate(found.port):
            left.append("sshd still shows a host certificate")
        return left

    # -- restarted --------------------------------------------------------------------------------------

    async def restart(self, spec: RestartHost, task_id: str, progress: Progress) -> None:
        """Reboot once: the task is delivered again afterwards, and finds another boot than the one in the record."""
        record = await self.find(spec.allocation_id)
        if record is None:
            raise PermanentError(f"this host is not handed over as {spec.allocation_id}")
        boot = _read_boot()
        if record.restart_task != task_id:
            if not _is_unit():
                raise PermanentError("cannot reboot: the agent is not a systemd unit and would not come back")
            progress("stop", "rebooting the host")
            record = self._record.save(replace(record, restart_task=task_id, restart_from=boot))
        if record.restart_from == boot:
            done = await call("systemctl", "reboot")
            if not done.ok:
                raise RetryLaterError(f"the host does not reboot: {done.said}")
            await asyncio.sleep(REBOOT_SECONDS)
            raise PermanentError(f"the host did not go down within {REBOOT_SECONDS} s")
        progress("ssh", "the host is up again, waiting for sshd")
        await self._wait_for_sshd()


def _remove_tree(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _read_boot() -> str:
    return BOOT_ID.read_text().strip()


def _is_unit() -> bool:
    return "INVOCATION_ID" in os.environ and sshd.has_systemd()
