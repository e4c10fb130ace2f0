"""A call's session: the platform, the credentials, the chosen project."""

import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gpuaas_cli.errors import NOT_FOUND, USAGE, CliError
from gpuaas_cli.options import Options
from gpuaas_sdk.profile import config as configuration
from gpuaas_sdk.profile import target as profile
from gpuaas_sdk.profile.config import Config
from gpuaas_sdk.profile.target import Target

if TYPE_CHECKING:
    from gpuaas_contract.identity import Project
    from gpuaas_sdk.client import GpuaasClient


def find_target(options: Options, config: Config) -> Target:
    return profile.find_target(
        config,
        context=options.context,
        api_url=options.api_url,
        project=options.project,
        ca_file=options.ca_file,
    )


class Session:
    def __init__(self, client: "GpuaasClient", target: Target) -> None:
        self.client = client
        self.target = target
        self._project: Project | None = None

    async def project(self) -> "Project":
        """Return the chosen project, or the only visible one."""
        if self._project is None:
            self._project = await self.find_project(self.target.project)
        return self._project

    async def project_id(self) -> str:
        return (await self.project()).id

    async def find_project(self, wanted: str | None) -> "Project":
        from gpuaas_contract import ids

        if wanted is not None and ids.is_id(wanted, ids.PROJECT):
            return await self.client.projects.get(wanted)
        projects = await self.client.projects.list().all()
        tenants: dict[str, str] = {}
        if wanted is not None and "/" in wanted:
            tenants = {t.id: t.name for t in await self.client.tenants.list().all()}
        matching = [
            p for p in projects if wanted in (None, p.name, f"{tenants.get(p.tenant_id, p.tenant_id)}/{p.name}")
        ]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(sorted(p.name for p in projects)) or "none"
        if not matching:
            raise CliError(f"no project {wanted!r} is visible to you (visible: {names})", NOT_FOUND)
        problem = f"several projects are named {wanted!r}" if wanted else "no project chosen"
        raise CliError(
            f"{problem} (visible: {names})", USAGE, hint="--project TENANT/NAME, or: gpuaas context use --project NAME"
        )


def quiet_httpx() -> None:
    """Keep httpx from loading its own command line with click and rich: a tenth of our start-up time."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


@asynccontextmanager
async def open_session(options: Options) -> AsyncIterator[Session]:
    quiet_httpx()
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.retry import RetryPolicy

    gc.freeze()
    gc.enable()
    target = find_target(options, configuration.load())
    credentials = profile.find_credentials(target)
    # People wait for it: give up sooner than a controller does.
    async with GpuaasClient(
        target.api_url,
        credentials,
        retry=RetryPolicy(attempts=4),
        user_agent="gpuaas-cli",
        ca_file=target.ca_file,
    ) as client:
        with client.correlation():
            yield Session(client, target)
