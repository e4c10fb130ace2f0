"""Everything here runs as root on real processes, each test in a state directory and on ports of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support import ports

from gpuaas_stack import users
from gpuaas_stack.supervision import Supervision

if os.geteuid() != 0:
    pytest.skip("the stack starts services as several users, which takes root", allow_module_level=True)


@pytest.fixture
def state_dir() -> Iterator[Path]:
    # Not pytest's own temporary directory: that one lets no other user in, and services run as others.
    users.ensure_users()
    directory = Path(tempfile.mkdtemp(prefix="gpuaas-test-", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def supervision(state_dir: Path) -> Iterator[Supervision]:
    supervision = Supervision(state_dir)
    yield supervision
    supervision.stop()


@pytest.fixture
def free_port() -> Callable[[], int]:
    return ports.free_port


@pytest.fixture
def new_slug() -> Iterator[Callable[[], str]]:
    """Slugs of apps that no machine has, whose users go with the test."""
    slugs: list[str] = []

    def make() -> str:
        slugs.append(f"test-{secrets.token_hex(5)}")
        return slugs[-1]

    yield make
    for slug in slugs:
        subprocess.run(["userdel", users.controller_user(slug)], check=True)
