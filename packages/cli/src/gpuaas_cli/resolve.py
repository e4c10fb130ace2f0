"""Names or ids: both are accepted everywhere. Names are looked up in the current project."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpuaas_cli.errors import NOT_FOUND, USAGE, CliError
from gpuaas_cli.session import Session
from gpuaas_contract import ids

if TYPE_CHECKING:
    from gpuaas_contract.allocations import Allocation
    from gpuaas_contract.credentials import Credential
    from gpuaas_contract.identity import Tenant, User
    from gpuaas_contract.instances import Instance
    from gpuaas_contract.nodes import Node
    from gpuaas_contract.volumes import Volume


class Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


Thing = TypeVar("Thing", bound=Named)


def pick(noun: str, wanted: str, found: Iterable[Thing], live: Iterable[Thing]) -> Thing:
    """Pick the live resource of that name, or else the newest ended one: names are used again after an end."""
    for candidates in (live, found):
        matching = [item for item in candidates if item.name == wanted]
        if matching:
            return max(matching, key=lambda item: item.id)
    raise CliError(f"there is no {noun} {wanted!r}", NOT_FOUND, hint=f"gpuaas {noun} list")


async def allocation(session: Session, wanted: str) -> "Allocation":
    if ids.is_id(wanted, ids.ALLOCATION):
        return await session.client.allocations.get(wanted)
    found = await session.client.allocations.list(project_id=await session.project_id()).all()
    return pick("allocation", wanted, found, [item for item in found if item.status != "released"])


async def instance(session: Session, wanted: str) -> "Instance":
    if ids.is_id(wanted, ids.INSTANCE):
        return await session.client.instances.get(wanted)
    found = await session.client.instances.list(project_id=await session.project_id()).all()
    return pick("instance", wanted, found, [item for item in found if item.status != "decommissioned"])


async def credential(session: Session, wanted: str) -> "Credential":
    if ids.is_id(wanted, ids.CREDENTIAL):
        return await session.client.credentials.get(wanted)
    found = await session.client.credentials.list(project_id=await session.project_id()).all()
    return pick("credential", wanted, found, found)


async def service_account_id(session: Session, wanted: str) -> str:
    """An id is taken as it is: an account of the tenant can be named by people who may not read it."""
    if ids.is_id(wanted, ids.SERVICE_ACCOUNT):
        return wanted
    found = await session.client.service_accounts.list(project_id=await session.project_id()).all()
    return pick("service-account", wanted, found, found).id


async def volume(session: Session, wanted: str) -> "Volume":
    if ids.is_id(wanted, ids.VOLUME):
        return await session.client.volumes.get(wanted)
    found = await session.client.volumes.list(project_id=await session.project_id()).all()
    return pick("volume", wanted, found, [item for item in found if item.status != "deleted"])


async def volume_at(session: Session, words: str) -> dict[str, str]:
    """Parse NAME:/PATH."""
    name, colon, path = words.partition(":")
    if not colon:
        raise CliError(f"cannot read {words!r}: the mount path is missing", USAGE, hint="--volume NAME:/PATH")
    return {"volume_id": (await volume(session, name)).id, "path": path}


async def node(session: Session, wanted: str) -> "Node":
    if ids.is_id(wanted, ids.NODE):
        return await session.client.nodes.get(wanted)
    found = await session.client.nodes.list().all()
    return pick("node", wanted, found, found)


async def tenant(session: Session, wanted: str) -> "Tenant":
    if ids.is_id(wanted, ids.TENANT):
        return await session.client.tenants.get(wanted)
    found = await session.client.tenants.list().all()
    return pick("tenant", wanted, found, found)


async def user(session: Session, wanted: str) -> "User":
    async for found in session.client.users.list():
        if wanted in (found.id, found.email):
            return found
    raise CliError(f"there is no user {wanted!r}", NOT_FOUND, hint="gpuaas user list")
