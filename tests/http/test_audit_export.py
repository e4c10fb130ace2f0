"""An export of the audit trail is checked without the platform; entries from before the newest form stay good."""

import asyncio
import json
from datetime import UTC, datetime

import httpx
import psycopg
import pytest

from gpuaas_contract import ids
from gpuaas_contract.audit import AuditEntry, batch_hash
from gpuaas_contract.identity import Role
from gpuaas_platform.audit.service import RECHECK_SECONDS
from gpuaas_sdk.audit import AuditBroken, verify_audit, verify_export
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ForbiddenError, InvalidRequestError, NotFoundError
from gpuaas_stack.settings import Settings
from tests.support.database import connect
from tests.support.waiting import until
from tests.support.world import World


async def all_sealed(world: World, least: int) -> int:
    """Wait until all entries are sealed, at least so many, and the newest batch is signed; return their number."""

    async def found() -> int:
        entries = await world.admin.audit.list(tenant_id=world.tenant.id).all()
        if not all(entry.position for entry in entries):
            return 0
        report = await verify_audit(world.admin, world.tenant.id, require_checkpoint=False)
        return report.entries if report.entries >= least and report.checkpoint_covers else 0

    return await until(found, f"{least} entries are sealed and signed")


async def export(client: GpuaasClient, **only: str | int) -> list[str]:
    return [line async for line in client.audit.export(**only)]  # type: ignore[arg-type]


async def test_an_export_is_whole_and_shows_what_was_done_to_it(world: World) -> None:
    tenant_id = world.tenant.id
    project = await world.admin.projects.create(tenant_id, "books")
    count = await all_sealed(world, 4)
    lines = await export(world.admin, tenant_id=tenant_id)
    report = verify_export(lines)
    assert (report.chain, report.first_batch, report.entries >= count, report.omitted) == (tenant_id, 1, True, 0)
    assert report.signed_up_to == report.last_batch
    assert verify_export(lines, public_key=report.public_key) == report
    # That somebody exported it is in the trail, too.
    assert [e.target for e in await world.admin.audit.list(action="audit.export", tenant_id=tenant_id).all()]

    filtered = await export(world.admin, tenant_id=tenant_id, action="project.", target=project.id)
    found = verify_export(filtered)
    assert (found.entries, found.omitted >= count - 1) == (1, True)
    (entry,) = [json.loads(line)["entry"] for line in filtered if line.startswith('{"entry"')]
    assert (entry["target"], entry["address"], entry["service"]) == (project.id, "127.0.0.1", "identity")

    for broken, why in {
        "changed": ([line.replace("127.0.0.1", "127.0.0.2") for line in lines], "was changed"),
        "a line less": ([line for line in lines if project.id not in line], "missing|does not hold"),
        "swapped": ([*lines[:2], *reversed(lines[2:4]), *lines[4:]], "missing|not in its place|does not hold"),
        "cut off": (lines[:-1], "cut off"),
        "the last batch cut off": (_without_last_batch(lines), "truncated"),
        "without its signature": ([line for line in lines if not line.startswith('{"checkpoint"')], "no signed"),
        "with another signature": ([_with_other_signature(line) for line in lines], "not the platform's"),
        "not an export": (["hello"], "not a line of an export"),
        "nothing": ([], "no header"),
        "twice": (lines * 2, "after the end"),
    }.values():
        with pytest.raises(AuditBroken, match=why):
            verify_export(broken)
    with pytest.raises(AuditBroken, match="another key"):
        verify_export(lines, public_key="AAAA")


def _without_last_batch(lines: list[str]) -> list[str]:
    """As somebody would who knows how an export is counted."""
    last = max(number for number, line in enumerate(lines) if line.startswith('{"batch"'))
    kept = lines[:last]
    end = {
        "batches": sum(line.startswith('{"batch"') for line in kept),
        "entries": sum(line.startswith('{"entry"') for line in kept),
        "omitted": 0,
    }
    return [*kept, lines[-2], json.dumps({"end": end})]


def _with_other_signature(line: str) -> str:
    document = json.loads(line)
    if "checkpoint" in document:
        document["checkpoint"]["signature"] = "A" * 86 + "=="
    return json.dumps(document)


async def test_an_export_goes_on_where_the_last_one_ended(world: World) -> None:
    tenant_id = world.tenant.id
    await all_sealed(world, 3)
    first = verify_export(await export(world.admin, tenant_id=tenant_id))
    project = await world.admin.projects.create(tenant_id, "later")
    await all_sealed(world, first.entries + 2)
    lines = await export(world.admin, tenant_id=tenant_id, after_batch=first.last_batch)
    later = verify_export(lines)
    assert later.first_batch == first.last_batch + 1
    assert project.id in "".join(lines)
    assert world.project.id not in "".join(lines)
    with pytest.raises(NotFoundError):
        await export(world.admin, tenant_id=tenant_id, after_batch=9_999)
    with pytest.raises(InvalidRequestError):
        await export(world.admin, tenant_id=tenant_id, after_batch=-1)
    with pytest.raises(InvalidRequestError):
        await export(world.admin, tenant_id=tenant_id, outcome="perhaps")


async def test_only_those_who_may_read_the_trail_export_it(settings: Settings, world: World) -> None:
    password = "a long enough password"
    user = await world.admin.users.create(f"eve-{world.app_slug}@example.com", password)
    await world.admin.memberships.create(user.id, Role.PROJECT_ADMIN, project_id=world.project.id)
    other = await world.admin.projects.create(world.tenant.id, "others")
    await all_sealed(world, 4)
    async with GpuaasClient(settings.api_url, PasswordCredentials(user.email, password)) as eve:
        lines = await export(eve, project_id=world.project.id)
        assert verify_export(lines).omitted
        assert other.id not in "".join(lines)
        for only in ({}, {"tenant_id": world.tenant.id}, {"project_id": other.id}):
            with pytest.raises((ForbiddenError, NotFoundError)):
                await export(eve, **only)


async def test_an_export_ends_with_the_right_to_it(settings: Settings, world: World) -> None:
    """A slow reader takes hours for a long trail: the rest is not for somebody who lost the role meanwhile."""
    password = "a long enough password"
    user = await world.admin.users.create(f"slow-{world.app_slug}@example.com", password)
    role = await world.admin.memberships.create(user.id, Role.TENANT_ADMIN, tenant_id=world.tenant.id)
    with connect(settings) as database:
        # More than all buffers on the way hold.
        database.execute(
            """INSERT INTO audit_entries (id, principal_id, action, target, correlation_id, chain, detail)
               SELECT 'aud_' || %(chain)s || i, 'usr', 'bulk', '', 'cor', %(chain)s,
                      jsonb_build_object('text', repeat('x', 3000))
               FROM generate_series(1, 8000) AS i""",
            {"chain": world.tenant.id},
        )

        def unsealed() -> bool:
            query = "SELECT 1 FROM audit_entries WHERE chain = %s AND position IS NULL LIMIT 1"
            return database.execute(query, (world.tenant.id,)).fetchone() is not None

        async def sealed() -> bool:
            return not unsealed()

        await until(sealed, "all of it is sealed", 120)
    async with GpuaasClient(settings.api_url, PasswordCredentials(user.email, password)) as slow:
        headers = {"Authorization": f"Bearer {await slow.token()}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        url, asked = f"{settings.api_url}/v1/audit/export", {"tenant_id": world.tenant.id}
        async with http.stream("GET", url, params=asked) as answer:
            assert answer.status_code == 200
            pieces = answer.aiter_text()
            text = await anext(pieces)
            await world.admin.memberships.delete(role.id)

            async def refused() -> bool:
                # For longer than an answer to the question counts.
                return (await http.get(url, params=asked)).status_code == 404

            await until(refused, "the role is gone everywhere")
            began = asyncio.get_running_loop().time()

            async def a_moment_passed() -> bool:
                return asyncio.get_running_loop().time() - began > 2 * RECHECK_SECONDS

            await until(a_moment_passed, "the right is looked at again")
            async for piece in pieces:
                text += piece
    assert '{"end"' not in text
    assert text.count('{"entry"') < 8000


async def test_one_principal_has_few_exports_at_a_time(settings: Settings, world: World) -> None:
    headers = {"Authorization": f"Bearer {await world.admin.token()}"}
    url = f"{settings.api_url}/v1/audit/export"
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        answers = await asyncio.gather(*(http.get(url, params={"tenant_id": world.tenant.id}) for _ in range(20)))
        assert {answer.status_code for answer in answers} <= {200, 429}
        assert all(answer.text.splitlines()[-1].startswith('{"end"') for answer in answers if answer.status_code == 200)
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
        # None of them is counted any more.
        assert (await http.get(url, params={"tenant_id": world.tenant.id})).status_code == 200


async def test_entries_of_before_stay_good_and_new_fields_are_sealed(settings: Settings, world: World) -> None:
    chain = world.tenant.id
    await all_sealed(world, 3)
    with connect(settings) as database:
        old = _sealed_by_the_version_before(database, chain)
        await all_sealed(world, old.position or 0)
        assert verify_export(await export(world.admin, tenant_id=chain)).last_batch >= (old.batch or 0)
        # What its seal does not cover is not shown, whoever wrote it there.
        database.execute("UPDATE audit_entries SET address = '192.0.2.66' WHERE id = %s", [old.id])
        (shown,) = await world.admin.audit.list(target=old.target, tenant_id=chain).all()
        assert (shown.form, shown.address) == (1, "")
        await verify_audit(world.admin, chain)
        for change, back in (
            ("address = '192.0.2.66'", "address = '127.0.0.1'"),
            ("user_agent = 'another'", "user_agent = 'gpuaas-sdk'"),
            ("form = 1", "form = 2"),
        ):
            place = "WHERE chain = %s AND position = 1"
            database.execute(f"UPDATE audit_entries SET {change} {place}".encode(), [chain])
            with pytest.raises(AuditBroken):
                await verify_audit(world.admin, chain)
            database.execute(f"UPDATE audit_entries SET {back} {place}".encode(), [chain])
            await verify_audit(world.admin, chain)


def _sealed_by_the_version_before(database: psycopg.Connection, chain: str) -> AuditEntry:
    """As that one does it: it knows neither the new columns nor a form."""
    row = database.execute(
        "SELECT number, last_position, hash FROM audit_batches WHERE chain = %s ORDER BY number DESC LIMIT 1", [chain]
    ).fetchone()
    assert row is not None
    number, position, previous = row[0] + 1, row[1] + 1, row[2]
    entry = AuditEntry(
        id=ids.new_id(ids.AUDIT_ENTRY),
        at=datetime.now(UTC),
        chain=chain,
        position=position,
        batch=number,
        principal_id="platform",
        action="old.entry",
        target=f"old-{chain}",
        correlation_id="cor_old",
    )
    with database.transaction():
        database.execute(
            """INSERT INTO audit_entries (id, at, chain, position, batch, principal_id, action, target, correlation_id,
                   detail) VALUES (%s, %s, %s, %s, %s, 'platform', 'old.entry', %s, 'cor_old', '{}')""",
            [entry.id, entry.at, chain, position, number, entry.target],
        )
        database.execute(
            """INSERT INTO audit_batches (chain, number, first_position, last_position, hash)
               VALUES (%s, %s, %s, %s, %s)""",
            [chain, number, position, position, batch_hash(previous, [entry])],
        )
    return entry
