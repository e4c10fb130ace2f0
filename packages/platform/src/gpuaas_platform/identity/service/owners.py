"""Things that belong to an app or to a project: who may do what with them, and whose a list shows."""

from typing import Protocol, TypeVar

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import not_found
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.apps import require_app
from gpuaas_platform.identity.service.tenants import require_project, visible_projects


class OwnedByAppOrProject(Protocol):
    """A thing of an app or of a project."""

    @property
    def app_slug(self) -> str | None: ...

    @property
    def project_id(self) -> str | None: ...

    @property
    def tenant_id(self) -> str | None: ...


T = TypeVar("T", bound=OwnedByAppOrProject)


async def require_owner_of_artifacts(
    tx: Transaction, caller: Caller, app_slug: str | None, project_id: str | None, permission: Permission
) -> None:
    """Require the permission in the project, or as a publisher of the app."""
    if project_id is not None:
        await require_project(tx, caller, project_id, permission)
    else:
        assert app_slug is not None
        await require_app(tx, caller, app_slug, permission, "app", app_slug)


async def require_owned(
    tx: Transaction, caller: Caller, row: T | None, permission: Permission, noun: str, id: str
) -> T:
    """Return the thing itself, where the caller has the permission where it belongs."""
    if row is None:
        raise not_found(noun, id)
    if row.project_id is not None:
        caller.require(permission, Scope(row.tenant_id, row.project_id), noun, id)
    else:
        assert row.app_slug is not None
        await require_app(tx, caller, row.app_slug, permission, noun, id)
    return row


async def seen_owners(
    tx: Transaction, caller: Caller, app_slug: str | None, project_id: str | None
) -> tuple[list[str] | None, list[str] | None]:
    """The projects and the apps that a list covers; None stands for all of them."""
    permission = Permission.ARTIFACT_READ
    if app_slug is not None:
        await require_app(tx, caller, app_slug, permission, "app", app_slug)
        return ([] if project_id is None else await visible_projects(tx, caller, project_id, permission)), [app_slug]
    projects = await visible_projects(tx, caller, project_id, permission)
    if project_id is not None:
        return projects, []
    return projects, None if caller.may(permission, Scope()) else caller.published_apps
