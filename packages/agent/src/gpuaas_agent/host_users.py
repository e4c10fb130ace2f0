"""The user that people log in as on a host that is handed over: made, and removed with all that it has."""

import asyncio
import grp
import pwd
from collections.abc import Callable
from pathlib import Path

from gpuaas_agent.commands import call, run
from gpuaas_agent.errors import PermanentError
from gpuaas_agent.host_config import PERSON_ID
from gpuaas_contract.access import PERSON_LOGIN

HOME = Path("/home") / PERSON_LOGIN
SHARED_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - to be cleaned, not to be written to
OTHER_TRACES = tuple(
    Path(directory) / PERSON_LOGIN
    for directory in ("/var/mail", "/var/spool/mail", "/var/spool/cron/crontabs", "/var/lib/systemd/linger")
)
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


async def remove_user() -> None:
    """The sudo rule is gone before, so that nothing of theirs starts again; nothing here minds being repeated."""
    if _exists(pwd.getpwnam):
        await call("loginctl", "disable-linger", PERSON_LOGIN)
        await call("loginctl", "terminate-user", PERSON_LOGIN)
    await _end_processes()
    if _exists(pwd.getpwnam):
        done = await call("userdel", "--force", "--remove", PERSON_LOGIN)
        if not done.ok and _exists(pwd.getpwnam):
            raise PermanentError(f"cannot remove the user {PERSON_LOGIN}: {done.said}")
    if _exists(grp.getgrnam):
        await run("groupdel", PERSON_LOGIN)
    await call("rm", "-rf", "--one-file-system", str(HOME), *map(str, OTHER_TRACES))
    # The next one who gets this host gets the same uid.
    await call("find", *SHARED_DIRECTORIES, "-xdev", "-uid", str(PERSON_ID), "-delete")


def _exists(find: Callable[[str], object]) -> bool:
    try:
        find(PERSON_LOGIN)
    except KeyError:
        return False
    return True


async def _end_processes() -> None:
    deadline = asyncio.get_running_loop().time() + END_SECONDS
    while await list_processes():
        await call("pkill", "-KILL", "--uid", str(PERSON_ID))
        if asyncio.get_running_loop().time() > deadline:
            raise PermanentError(f"processes of {PERSON_LOGIN} do not end: {', '.join(await list_processes())}")
        await asyncio.sleep(0.1)


async def list_processes() -> list[str]:
    found = await call("ps", "-o", "pid=,comm=", "-U", str(PERSON_ID))
    return [" ".join(line.split()) for line in found.stdout.splitlines() if line.strip()]


async def find_traces() -> list[str]:
    """What is left of the user, in words."""
    found = find_names()
    found += [f"the process {process}" for process in await list_processes()]
    found += [str(path) for path in (HOME, *OTHER_TRACES) if path.exists()]
    return found
