"""Ports for servers of tests: each is kept by a lock, so that two runs on one machine never choose the same one."""

import fcntl
import os
import random
import socket
from pathlib import Path

# Below the range from which the kernel takes ports of outgoing connections, and above those of the stacks.
FIRST, LAST = 20_000, 31_999
LOCKS = Path("/var/tmp/gpuaas-test-ports")
_kept: list[int] = []


def free_port() -> int:
    """Choose a port on which nothing listens, and keep it for as long as this process lives."""
    LOCKS.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(FIRST, LAST + 1), 200):
        lock = os.open(LOCKS / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        if _is_ours(lock) and _is_free(port):
            _kept.append(lock)
            return port
        os.close(lock)
    raise RuntimeError(f"cannot find a free port: 200 between {FIRST} and {LAST} are in use")


def _is_ours(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections that ended a moment ago do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
