"""The audit trail holds what happened and what was refused, and shows when somebody touched it."""

from collections.abc import Iterator

import psycopg
import pytest

from gpuaas_contract.identity import Role
from gpuaas_sdk.audit import AuditBroken, verify_audit
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ForbiddenError, InvalidRequestError
from gpuaas_stack.settings import Settings
from tests.support.database import connect
from tests.support.world import World


@pytest.fixture
def database(settings: Settings) -> Iterator[psycopg.Connection]:
    with connect(settings) as connection:
        yield connection


async def sealed_world(world: World) -> None:
    """Three batches at least, with a checkpoint on the newest."""
    sealed = 0
    for name in ("a", "b", "c"):
        await world.admin.projects.create(world.tenant.id, name)

        async def grown(before: int = sealed) -> int:
            report = await verify_audit(world.admin, world.tenant.id, require_checkpoint=False)
            return report.entries if report.entries > before and report.checkpoint_covers else 0

        sealed = await world.until(grown, "the entry is sealed and has a checkpoint")


async def test_an_untouched_chain_verifies(world: World) -> None:
    await sealed_world(world)
    report = await verify_audit(world.admin, world.tenant.id)
    assert report.batches >= 3
    entries = [entry async for entry in world.admin.audit.list(tenant_id=world.tenant.id)]
    assert {"tenant.create", "project.create", "service_account.create"} <= {entry.action for entry in entries}
    assert all(entry.correlation_id and entry.principal_id for entry in entries)
    assert all(len(entry.fingerprint) == 64 for entry in entries if entry.action == "project.create")


TAMPERING = {
    "changed": "UPDATE audit_entries SET target = 'prj_other' WHERE chain = %(c)s AND position = 2",
    "removed": "DELETE FROM audit_entries WHERE chain = %(c)s AND position = 2",
    "reordered": """UPDATE audit_entries SET position = CASE position WHEN 1 THEN -1 ELSE -2 END
                    WHERE chain = %(c)s AND position IN (1, 2);
                    UPDATE audit_entries SET position = CASE position WHEN -1 THEN 2 ELSE 1 END
                    WHERE chain = %(c)s AND position < 0""",
    "cut off": """DELETE FROM audit_entries WHERE chain = %(c)s AND batch =
                      (SELECT max(number) FROM audit_batches WHERE chain = %(c)s);
                  DELETE FROM audit_batches WHERE chain = %(c)s AND number =
                      (SELECT max(number) FROM audit_batches WHERE chain = %(c)s)""",
}


@pytest.mark.parametrize("how", TAMPERING)
async def test_tampering_is_found(world: World, database: psycopg.Connection, how: str) -> None:
    await sealed_world(world)
    for statement in TAMPERING[how].split(";"):
        database.execute(statement.encode(), {"c": world.tenant.id})
    with pytest.raises(AuditBroken):
        await verify_audit(world.admin, world.tenant.id)


async def test_what_is_denied_to_a_known_principal_is_written_down(settings: Settings, world: World) -> None:
    password = "a long enough password"
    user = await world.admin.users.create(f"eve-{world.app_slug}@example.com", password)
    await world.admin.memberships.create(user.id, Role.PROJECT_VIEWER, project_id=world.project.id)
    async with GpuaasClient(settings.api_url, PasswordCredentials(user.email, password)) as eve:
        with pytest.raises(ForbiddenError) as refused:
            await eve.allocations.create(world.project.id, "mine")
    entries = [entry async for entry in world.admin.audit.list()]
    denied = [entry for entry in entries if entry.principal_id == user.id and entry.outcome == "denied"]
    assert [entry.correlation_id for entry in denied] == [refused.value.correlation_id]


@pytest.mark.own_platform("it reads the trails of all tenants")
async def test_reading_is_filtered_and_paged(settings: Settings, world: World) -> None:
    admin = world.admin
    user = await admin.users.create("eve@example.com", "a long enough password")
    await admin.memberships.create(user.id, Role.PROJECT_VIEWER, project_id=world.project.id)
    async with GpuaasClient(settings.api_url, PasswordCredentials(user.email, "a long enough password")) as eve:
        with pytest.raises(ForbiddenError) as refused:
            await eve.projects.create(world.tenant.id, "mine")
    made = [await admin.projects.create(world.tenant.id, f"p{number}") for number in range(3)]

    async def found(**only: str) -> list[str]:
        """Two at a time, so that there is more than one page."""
        return [entry.target async for entry in admin.audit.list(limit=2, **only)]

    projects = [world.project.id, *(project.id for project in made)]
    assert await found(action="project.create") == projects
    assert await found(action="project.", tenant_id=world.tenant.id) == projects
    assert await found(target=made[1].id) == [made[1].id]
    assert await found(outcome="denied") == ["/v1/projects"]
    assert await found(correlation_id=refused.value.correlation_id) == ["/v1/projects"]
    assert await found(principal_id=user.id, outcome="denied") == ["/v1/projects"]
    assert await found(principal_id=user.id, action="project.") == []
    with pytest.raises(InvalidRequestError):
        await found(outcome="perhaps")
