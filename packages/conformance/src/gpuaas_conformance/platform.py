"""A platform to run on: one of the kit's own, by the `gpuaas-stack` command, or one that is there already.

The kit's own is what `gpuaas-stack up` makes without apps: a project `demo` with three machines on this host, in an
environment of its own. Every setting is the stack's own GPUAAS_… variable; those that are set are kept."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OWN = {
    "GPUAAS_ENVIRONMENT": "conformance",
    "GPUAAS_STATE_DIR": "/var/lib/gpuaas-conformance",
    "GPUAAS_API_PORT": "8590",
    "GPUAAS_POSTGRES_PORT": "8591",
    "GPUAAS_OPENBAO_PORT": "8592",
    "GPUAAS_OPENBAO_CLUSTER_PORT": "8593",
    "GPUAAS_REGISTRY_PORT": "8594",
    "GPUAAS_SUBNET": "10.82.0.0/16",
}
ADMIN_EMAIL = "admin@gpuaas.example"


class KitError(Exception):
    """The kit cannot run; that says nothing about the app."""


@dataclass(frozen=True)
class Target:
    api_url: str
    email: str
    password: str
    project: str = "demo"
    machines: tuple[str, ...] = ("demo-1", "demo-2")


@contextmanager
def own_platform(*, keep: bool) -> Iterator[Target]:
    environment = {**OWN, **os.environ, "GPUAAS_APP_DIRS": ""}

    def stack(*words: str) -> None:
        done = subprocess.run(["gpuaas-stack", *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KitError(f"gpuaas-stack {' '.join(words)}: {done.stdout[-1_000:]}{done.stderr[-1_000:]}")

    stack("up")
    try:
        url = f"http://127.0.0.1:{environment['GPUAAS_API_PORT']}"
        password = Path(environment["GPUAAS_STATE_DIR"], "admin-password").read_text().strip()
        yield Target(url, ADMIN_EMAIL, password)
    finally:
        if not keep:
            stack("reset", "--yes")
