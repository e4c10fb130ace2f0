"""The users that log in on a host that is handed over: made, and removed with all that they have."""

import asyncio
import grp
import pwd
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuaas_agent.commands import call, run
from gpuaas_agent.errors import PermanentError
from gpuaas_agent.host_config import PEOPLE, PERSON_ID
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
        if group.gr_name in names or group.gr_gid in numbers:
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
    remove_abandoned_locks(Path("/etc"))


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


async def remove_people() -> None:
    """Delete everybody who ever had a grant here. The directory that lists them is removed later, with the rest."""
    for file in sorted(PEOPLE.iterdir()) if PEOPLE.is_dir() else []:
        if file.suffix == "":
            await _remove(HostUser(file.name, int(file.read_text()), Path("/home") / file.name))


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
