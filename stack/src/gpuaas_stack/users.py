"""System users that services run as, and files that belong to exactly one of them.

PostgreSQL and OpenBao, the registry, the API, and each app's controller are different users: the API must not read
OpenBao's seal key, the registry serves files that strangers pushed, and a controller must not read anything of the
platform or of another controller.

Users outlive `reset`, as Debian's own do: other environments of the machine share them, and a user id that is given out
again would own whatever files the earlier user has left."""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
from pathlib import Path

from gpuaas_stack.errors import StackError

STORES = "gpuaas"
REGISTRY = "gpuaas-registry"
API = "gpuaas-api"
SHARED_BY_CONTROLLERS = "gpuaas-apps"
"""The one user that all controllers ran as in earlier versions."""
CONTROLLER_PREFIX = "gpuaas-app-"
LONGEST_PLAIN_SLUG, KEPT_OF_A_LONG_SLUG, HASH_DIGITS = 20, 10, 10


def controller_user(slug: str) -> str:
    """Name the user of an app's controller, in the 32 characters that Linux allows.

    A shortened name is one character longer than any plain one, so that no app can be named like another's user."""
    if len(slug) > LONGEST_PLAIN_SLUG:
        digits = hashlib.sha256(slug.encode()).hexdigest()[:HASH_DIGITS]
        slug = f"{slug[:KEPT_OF_A_LONG_SLUG]}-{digits}"
    return f"{CONTROLLER_PREFIX}{slug}"


def ensure_user(name: str) -> None:
    if _exists(name):
        return
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    command += ["--shell", "/usr/sbin/nologin", "--comment", "GPUaaS", name]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    # Another stack that comes up at the same moment may have been quicker.
    if done.returncode != 0 and not _exists(name):
        raise StackError(f"cannot make the user {name}: {done.stderr.strip()}")


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def ensure_users() -> None:
    for name in (STORES, REGISTRY, API):
        ensure_user(name)


def ensure_dir(path: Path, owner: str = "root", mode: int = 0o755, *, group: str | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, pwd.getpwnam(owner).pw_uid, pwd.getpwnam(group or owner).pw_gid)
    path.chmod(mode)
    return path


def hand_over(directory: Path, former: str, owner: str) -> bool:
    """Give everything below a directory that belongs to a former user to its new owner. True if there was anything.

    Whoever can write there is not trusted: links are given away themselves, never what they point to."""
    try:
        former_id = pwd.getpwnam(former).pw_uid
    except KeyError:
        return False
    account = pwd.getpwnam(owner)
    found = False
    # The directory itself comes last, so that one who looks at it knows whether everything was done.
    for _, directories, files, descriptor in os.fwalk(directory, topdown=False, follow_symlinks=False):
        for name in (*directories, *files, "."):
            if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid == former_id:
                os.chown(name, account.pw_uid, account.pw_gid, dir_fd=descriptor, follow_symlinks=False)
                found = True
    return found


def write_private(path: Path, data: bytes | str, owner: str = "root") -> None:
    """Put a file in place whole, readable by its owner only: a crash never leaves half a secret."""
    account = pwd.getpwnam(owner)
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchown(file.fileno(), account.pw_uid, account.pw_gid)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def digest_of(path: Path) -> str:
    """Short, for a service that is to be started anew when the file is another one."""
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()[:16]


def run_as(user: str, argv: list[str], *, death_signal: str | None = None) -> list[str]:
    """Wrap argv to run as user, with no groups but its own and no way to gain rights."""
    wrapped = ["setpriv"]
    if user != "root":
        wrapped += [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    if death_signal:
        # Set by setpriv after the change of user, which would clear it.
        wrapped += [f"--pdeathsig={death_signal}"]
    return [*wrapped, "--", *argv] if len(wrapped) > 1 else argv


def check_reachable(path: Path, user: str) -> None:
    """Refuse a path that the user cannot reach, early and clearly."""
    done = subprocess.run(run_as(user, ["test", "-x", str(path)]), check=False, capture_output=True)
    if done.returncode != 0:
        raise StackError(
            f"cannot use {path}: the user {user} cannot enter it. Choose a directory that others may enter "
            "(GPUAAS_STATE_DIR, or a checkout outside of a private home)"
        )
