"""The users that people log in as on a host that is handed over: removed with all that they have."""

import asyncio
import grp
import pwd
from collections.abc import Callable
from pathlib import Path

from gpuaas_agent.commands import call, run
from gpuaas_agent.errors import PermanentError
from gpuaas_agent.host_config import PEOPLE, PERSON_ID
from gpuaas_contract.access import PERSON_LOGIN

HOME = Path("/home") / PERSON_LOGIN
SHARED_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - to be cleaned, not to be written to
_TRACE_DIRECTORIES = ("/var/mail", "/var/spool/mail", "/var/spool/cron/crontabs", "/var/lib/systemd/linger")
END_SECONDS = 15


def find_names() -> list[str]:
    """Who or what has the user's name or number now, in words."""
    found = []
    for user in pwd.getpwall():
        if user.pw_name == PERSON_LOGIN or user.pw_uid == PERSON_ID:
            found.append(f"the user {user.pw_name} with uid {user.pw_uid}")
    for group in grp.getgrall():
        if group.gr_name == PERSON_LOGIN or group.gr_gid == PERSON_ID:
            found.append(f"the group {group.gr_name} with gid {group.gr_gid}")
    return found


async def make_user() -> None:
    number = str(PERSON_ID)
    await run("groupadd", "--gid", number, PERSON_LOGIN)
    words = ["--uid", number, "--gid", number, "--home-dir", str(HOME), "--create-home", "--shell", "/bin/bash"]
    await run("useradd", *words, "--comment", "GPUaaS", PERSON_LOGIN)


async def remove_user(login: str = PERSON_LOGIN, uid: int = PERSON_ID) -> None:
    """The sudo rule is gone before, so that nothing of theirs starts again; nothing here minds being repeated."""
    if _exists(pwd.getpwnam, login):
        await call("loginctl", "disable-linger", login)
        await call("loginctl", "terminate-user", login)
    await _end_processes(login, uid)
    if _exists(pwd.getpwnam, login):
        done = await call("userdel", "--force", "--remove", login)
        if not done.ok and _exists(pwd.getpwnam, login):
            raise PermanentError(f"cannot remove the user {login}: {done.said}")
    if _exists(grp.getgrnam, login):
        await run("groupdel", login)
    await call("rm", "-rf", "--one-file-system", *map(str, _places(login)))
    # The next one who gets this host may get the same uid.
    await call("find", *SHARED_DIRECTORIES, "-xdev", "-uid", str(uid), "-delete")


async def remove_people() -> None:
    """All that ever had a grant here; the directory that knows them goes later, with the rest."""
    for file in sorted(PEOPLE.iterdir()) if PEOPLE.is_dir() else []:
        if file.suffix == "":
            await remove_user(file.name, int(file.read_text()))


def _places(login: str) -> list[Path]:
    return [Path("/home") / login, *(Path(directory) / login for directory in _TRACE_DIRECTORIES)]


def _exists(find: Callable[[str], object], login: str) -> bool:
    try:
        find(login)
    except KeyError:
        return False
    return True


async def _end_processes(login: str, uid: int) -> None:
    deadline = asyncio.get_running_loop().time() + END_SECONDS
    while await list_processes(uid):
        await call("pkill", "-KILL", "--uid", str(uid))
        if asyncio.get_running_loop().time() > deadline:
            raise PermanentError(f"processes of {login} do not end: {', '.join(await list_processes(uid))}")
        await asyncio.sleep(0.1)


async def list_processes(uid: int = PERSON_ID) -> list[str]:
    found = await call("ps", "-o", "pid=,comm=", "-U", str(uid))
    return [" ".join(line.split()) for line in found.stdout.splitlines() if line.strip()]


async def find_traces() -> list[str]:
    """What is left of the user, in words."""
    found = find_names()
    found += [f"the process {process}" for process in await list_processes()]
    found += [str(path) for path in _places(PERSON_LOGIN) if path.exists()]
    return found
