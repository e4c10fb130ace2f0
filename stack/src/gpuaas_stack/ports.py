"""Checks of ports: free before anything is started, answering afterwards."""

from __future__ import annotations

import errno
import socket
import time

from gpuaas_stack.errors import StackError


def ensure_free(host: str, port: int, purpose: str, setting: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise StackError(f"cannot listen on {host}:{port} for {purpose}: {error.strerror}") from error
            raise StackError(
                f"cannot start {purpose}: port {port} on {host} is taken by another program. "
                f"Stop that program, or choose another port with {setting}"
            ) from error


def answers(host: str, port: int, deadline: float) -> bool:
    """Wait for somebody to take connections there, until the deadline (of time.monotonic). True if somebody does."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=1):
                return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
