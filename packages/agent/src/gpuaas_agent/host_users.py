"""The users that log in on a host that is handed over: made, and removed with all that they have."""

import asyncio
import fcntl
import grp
import os
import pwd
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuaas_agent.commands import call, run
from gpuaas_agent.errors import PermanentError
from gpuaas_agent.host_config import PEOPLE, PERSON_ID
from gpuaas_agent.slice_config import REMOTE_GROUP
from gpuaas_contract.access import OBSERVER_ID, OBSERVER_LOGIN, PERSON_LOGIN

SHARED_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - to be cleaned, not to be written to
TRACE_DIRECTORIES = ("/var/mail", "/var/spool/mail", "/var/spool/cron/crontabs", "/var/lib/systemd/linger")
ACCOUNT_FILES = ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")
END_SECONDS = 15


@dataclass(frozen=True)
class HostUser:
    login: str
    number: int
    home: Path | None = None
    """None: it has none, and nothing of its own to write to."""

    @property
    def traces(self) -> list[Path]:
        own = [] if self.home is None else [self.home]
        return [*own, *(Path(directory) / self.login for directory in TRACE_DIRECTORIES)]


USERS = (HostUser(PERSON_LOGIN, PERSON_ID, Path("/home") / PERSON_LOGIN), HostUser(OBSERVER_LOGIN, OBSERVER_ID))


def find_names() -> list[str]:
    """Describe who or what has the name or number of one of them now."""
    names, numbers = {user.login for user in USERS}, {user.number for user in USERS}
    found = []
    for user in pwd.getpwall():
        if user.pw_name in names or user.pw_uid in numbers:
            found.append(f"the user {user.pw_name} with uid {user.pw_uid}")
    for group in grp.getgrall():
        if group.gr_name in (*names, REMOTE_GROUP) or group.gr_gid in numbers:
            found.append(f"the group {group.gr_name} with gid {group.gr_gid}")
    return found


async def make_users() -> None:
    for user in USERS:
        number = str(user.number)
        await run("groupadd", "--gid", number, user.login)
        home = ["--no-create-home"] if user.home is None else ["--create-home"]
        words = ["--uid", number, "--gid", number, "--home-dir", str(user.home or "/"), *home, "--shell", "/bin/bash"]
        await run("useradd", *words, "--comment", "GPUaaS", user.login)


async def remove_users() -> None:
    """End their processes and delete them; safe to repeat. The sudo rule is gone before, so nothing starts again."""
    for user in USERS:
        await _remove(user)
    if _has_remote_group():
        await run("groupdel", REMOTE_GROUP)
    await asyncio.to_thread(forget_names, Path("/etc"), REMOTE_GROUP)
    remove_abandoned_locks(Path("/etc"))


def _has_remote_group() -> bool:
    return any(group.gr_name == REMOTE_GROUP for group in grp.getgrall())


def remove_abandoned_locks(directory: Path) -> None:
    """Delete what a killed useradd or userdel leaves beside the files that it changes: `shadow.524`, with the number of
    its process inside or still empty, and `shadow.lock`, the same file once it holds the lock."""
    for file in directory.iterdir():
        name, _, suffix = file.name.partition(".")
        if name not in ACCOUNT_FILES or not (suffix == "lock" or suffix.isdigit()) or not file.is_file():
            continue
        process = file.read_bytes().strip(b"\0\n").decode(errors="replace") or suffix
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            file.unlink(missing_ok=True)


def forget_names(directory: Path, *names: str) -> None:
    """Delete the lines that a killed userdel or groupdel left of a user or group that is gone: they change one file
    after the other, and who is in none of the first is not found by their successor."""
    with (directory / ".pwd.lock").open("a") as lock:
        # As the tools themselves do it.
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for file in (directory / name for name in ("shadow", "gshadow", "subuid", "subgid")):
            lines = file.read_text().splitlines(keepends=True) if file.exists() else []
            kept = [line for line in lines if line.partition(":")[0] not in names]
            if kept != lines:
                _replace(file, "".join(kept))


def _replace(file: Path, text: str) -> None:
    """Put it in place whole, with owner and mode as before."""
    before, part = file.stat(), file.with_name(f"{file.name}.gpuaas")
    part.touch(mode=0o600)
    part.write_text(text)
    os.chown(part, before.st_uid, before.st_gid)
    part.chmod(stat.S_IMODE(before.st_mode))
    part.replace(file)


async def remove_people() -> None:
    """Delete everybody who ever had a user here, and the groups of projects. The directory that lists them is removed
    later, with the rest."""
    for file in sorted(PEOPLE.iterdir()) if PEOPLE.is_dir() else []:
        if file.suffix == "":
            await _remove(HostUser(file.name, int(file.read_text()), Path("/home") / file.name))
        elif file.suffix == ".group" and any(group.gr_name == file.stem for group in grp.getgrall()):
            await run("groupdel", file.stem)


async def _remove(user: HostUser) -> None:
    if _exists(pwd.getpwnam, user):
        await call("loginctl", "disable-linger", user.login)
        await call("loginctl", "terminate-user", user.login)
    await _end_processes(user)
    if _exists(pwd.getpwnam, user):
        home = [] if user.home is None else ["--remove"]
        done = await call("userdel", "--force", *home, user.login)
        if not done.ok and _exists(pwd.getpwnam, user):
            raise PermanentError(f"cannot remove the user {user.login}: {done.said}")
    if _exists(grp.getgrnam, user):
        await run("groupdel", user.login)
    await asyncio.to_thread(forget_names, Path("/etc"), user.login)
    await call("rm", "-rf", "--one-file-system", *map(str, user.traces))
    # The next one who gets this host gets the same uid.
    await call("find", *SHARED_DIRECTORIES, "-xdev", "-uid", str(user.number), "-delete")


def _exists(find: Callable[[str], object], user: HostUser) -> bool:
    try:
        find(user.login)
    except KeyError:
        return False
    return True


async def _end_processes(user: HostUser) -> None:
    deadline = asyncio.get_running_loop().time() + END_SECONDS
    while running := await _list_processes(user):
        await call("pkill", "-KILL", "--uid", str(user.number))
        if asyncio.get_running_loop().time() > deadline:
            raise PermanentError(f"processes of {user.login} do not end: {', '.join(running)}")
        await asyncio.sleep(0.1)


async def _list_processes(user: HostUser) -> list[str]:
    found = await call("ps", "-o", "pid=,comm=", "-U", str(user.number))
    return [" ".join(line.split()) for line in found.stdout.splitlines() if line.strip()]


async def find_traces() -> list[str]:
    """Describe every trace that is left of them."""
    found = find_names()
    for user in USERS:
        found += [f"the process {process}" for process in await _list_processes(user)]
        found += [str(path) for path in user.traces if path.exists()]
    return found
