"""What there is one of on a machine, for several environments: each leaves a note that it uses it, under one lock."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from gpuaas_stack import users


class Shared:
    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.environments = run_dir / "environments"
        """A file for each that uses it."""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        users.ensure_dir(self.run_dir, mode=0o700)
        users.ensure_dir(self.environments, mode=0o700)
        with (self.run_dir / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
