"""A platform to run on: one of the kit's own, by the `gpuaas-stack` command, or one that is there already.

The kit's own is what `gpuaas-stack up` makes without apps: a project `demo` with three machines on this host, in an
environment of its own. Every setting is the stack's own GPUAAS_… variable; those that are set are kept."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuaas_contract import ids
from gpuaas_contract.allocations import Allocation
from gpuaas_contract.identity import Project
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import NotFoundError

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
    ca_file: str | None = None


@contextmanager
def own_platform(*, keep: bool) -> Iterator[Target]:
    environment = {**OWN, **os.environ, "GPUAAS_APP_DIRS": ""}

    def stack(*words: str) -> str:
        done = subprocess.run(["gpuaas-stack", *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KitError(f"gpuaas-stack {' '.join(words)}: {done.stdout[-1_000:]}{done.stderr[-1_000:]}")
        return done.stdout

    stack("up")
    try:
        status = json.loads(stack("status", "--json"))
        password = Path(environment["GPUAAS_STATE_DIR"], "admin-password").read_text().strip()
        yield Target(status["api_url"], ADMIN_EMAIL, password, ca_file=status["ca_file"])
    finally:
        if not keep:
            stack("reset", "--yes")


async def find_project(admin: GpuaasClient, wanted: str) -> Project:
    """By its id, its name, or tenant/name where several tenants have a project of that name."""
    if ids.is_id(wanted, ids.PROJECT):
        try:
            return await admin.projects.get(wanted)
        except NotFoundError:
            raise KitError(f"there is no project {wanted}") from None
    tenant_name, slash, name = wanted.rpartition("/")
    found = [project for project in await admin.projects.list().all() if project.name == name]
    if slash:
        tenants = {tenant.id for tenant in await admin.tenants.list().all() if tenant_name in (tenant.id, tenant.name)}
        found = [project for project in found if project.tenant_id in tenants]
    if not found:
        raise KitError(f"there is no project {wanted!r}; give its name, tenant/name or id")
    if len(found) > 1:
        raise KitError(f"{len(found)} projects are named {wanted!r}; give tenant/name or an id: {_ids(found)}")
    return found[0]


def _ids(projects: list[Project]) -> str:
    return ", ".join(sorted(project.id for project in projects))


async def find_machines(admin: GpuaasClient, project: Project, wanted: tuple[str, ...]) -> list[Allocation]:
    there = await admin.allocations.list(project_id=project.id).all()
    known = {key: machine for machine in there for key in (machine.name, machine.id)}
    if missing := [name for name in wanted if name not in known]:
        raise KitError(f"there is no machine {', '.join(map(repr, missing))} in {project.name}")
    return [known[name] for name in wanted]


async def other_controllers(admin: GpuaasClient, project: Project, slug: str) -> str:
    """Say whether other controllers have to be stopped: any that can claim would take the kit's operations."""
    accounts = [
        *await admin.service_accounts.list(project_id=project.id).all(),
        *await admin.service_accounts.list(tenant_id=project.tenant_id).all(),
    ]
    able = sorted({account.name for account in accounts if account.app_slug == slug and not account.disabled})
    if not able:
        return f"no other account works for {slug} in {project.name}: no controller has to be stopped"
    return (
        f"stop every other controller of {slug} that works in {project.name} while the kit runs, for it would claim "
        f"the kit's operations; accounts that can: {', '.join(able)}"
    )
