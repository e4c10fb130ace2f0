"""Resource limits of a project."""

from typing import TYPE_CHECKING

from gpuaas_cli import output
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.quotas import Quota

app = noun(__name__, __doc__)
_NAMES = ("cpus", "memory_mib", "disk_gib", "gpus", "allocations")


def _show(quota: "Quota") -> None:
    def words(name: str) -> str:
        limit = getattr(quota.limits, name)
        return f"{getattr(quota.used, name)} of {'unlimited' if limit is None else limit}"

    output.one(quota, {"project": quota.project_id, **{name.replace("_", " "): words(name) for name in _NAMES}})


@app.command
async def show(*, options: Options = DEFAULTS) -> None:
    """Show the project's usage and limits."""
    async with open_session(options) as session:
        _show(await session.client.quotas.get(await session.project_id()))


@app.command(name="set")
async def set_(
    *,
    cpus: int | None = None,
    memory_mib: int | None = None,
    disk_gib: int | None = None,
    gpus: int | None = None,
    allocations: int | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Set all limits of the project (tenant administrators). Limits that are not given are lifted."""
    async with open_session(options) as session:
        quota = await session.client.quotas.set(
            await session.project_id(),
            cpus=cpus,
            memory_mib=memory_mib,
            disk_gib=disk_gib,
            gpus=gpus,
            allocations=allocations,
        )
    _show(quota)
