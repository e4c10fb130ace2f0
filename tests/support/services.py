"""A platform for tests: real PostgreSQL, real OpenBao and the API, in a state directory and on ports of its own."""

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuaas_stack import users
from gpuaas_stack.progress import Progress
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def own_stack(environment: str) -> Iterator[Stack]:
    """A supervisor with no services yet. What it is given ends, and its state with it, when the tests do."""
    users.ensure_users()
    # Not pytest's own temporary directory: that one lets no other user in, and services run as others.
    state_dir = Path(tempfile.mkdtemp(prefix=f"gpuaas-{environment}-", dir="/var/tmp"))
    state_dir.chmod(0o755)
    settings = Settings(
        state_dir=state_dir,
        environment=environment,
        api_port=free_port(),
        postgres_port=free_port(),
        openbao_port=free_port(),
        openbao_cluster_port=free_port(),
        app_dirs=(),
    )
    stack = Stack(settings, Progress())
    try:
        stack.supervision.ensure_running()
        yield stack
    finally:
        stack.supervision.stop()
        shutil.rmtree(state_dir)


@contextmanager
def platform_services(environment: str) -> Iterator[Settings]:
    """The API without machines."""
    with own_stack(environment) as stack:
        stack.ensure_platform()
        yield stack.settings


def admin_credentials(settings: Settings) -> tuple[str, str]:
    admin = json.loads(settings.admin_file.read_text())
    return admin["email"], admin["password"]
