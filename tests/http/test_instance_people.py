"""The people of an instance: who they are, the entries that they have on its machines, and how both follow rights."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gpuaas_contract.agent_link import SetUsers
from gpuaas_contract.identity import Role
from gpuaas_contract.instances import Instance
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.people import Person as InstancePerson
from gpuaas_sdk import Controller, ObserveContext
from gpuaas_sdk.errors import ForbiddenError, InvalidStateError, NotFoundError
from gpuaas_stack.settings import Settings
from tests.http.test_grants import Person, person
from tests.http.test_observing import NoMachines
from tests.support.database import connect
from tests.support.policy_world import PUBLIC_KEY
from tests.support.world import MANIFEST, World

SECONDS = 10


def with_entrance(slug: str) -> dict[str, Any]:
    head, tail = MANIFEST["components"]
    return {**MANIFEST, "slug": slug, "version": "1.1.0", "components": [{**head, "entrance": True}, tail]}


async def eventually(what: str, look: Callable[[], Awaitable[Any]]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := await look()):
        assert time.monotonic() < deadline, f"waited {SECONDS} s for {what}"
        await asyncio.sleep(0.05)
    return found


async def deployed(world: World, *, entrance: bool = True) -> Instance:
    """A head on the machine `one` and a tail on `two`."""
    if entrance:
        await world.admin.app_versions.publish(Manifest.model_validate(with_entrance(world.app_slug)))
    machines = [await world.allocation("one"), await world.allocation("two")]
    return await world.deploy(machines[1], head=machines[0])


async def people_of(world: World, instance: Instance) -> dict[str, InstancePerson]:
    return {each.user_id: each for each in await world.admin.instances.people(instance.id).all()}


async def settled(world: World, instance: Instance, who: Person) -> InstancePerson:
    async def look() -> InstancePerson | None:
        found = (await people_of(world, instance)).get(who.user.id)
        ready = found is not None and found.left_at is None and {e.status for e in found.entries} == {"active"}
        return found if ready and found and len(found.entries) == 2 else None

    return await eventually(f"{who.user.email} to be on both machines", look)  # type: ignore[no-any-return]


def told(world: World, allocation_id: str) -> SetUsers:
    specs = [task.spec for task in world.node.taken if isinstance(task.spec, SetUsers)]
    return [spec for spec in specs if spec.allocation_id == allocation_id][-1]


async def test_members_have_a_login_on_the_entrance_and_an_account_elsewhere(world: World) -> None:
    async with person(world, "mia") as mia, person(world, "vic", Role.PROJECT_VIEWER) as vic:
        instance = await deployed(world)
        found = await settled(world, instance, mia)
        assert (found.role, found.project_id, found.may_log_in) == ("project_member", world.project.id, True)
        assert found.login.startswith("u-mia")
        assert found.group.startswith("p-")
        assert found.gid != found.uid
        assert {(e.allocation_name, e.log_in) for e in found.entries} == {("one", True), ("two", False)}
        assert vic.user.id not in await people_of(world, instance)
        by_name = {e.allocation_name: e.allocation_id for e in found.entries}
        on_head, on_tail = told(world, by_name["one"]), told(world, by_name["two"])
        assert found.login in {user.login for user in on_head.users}
        assert on_head.temporary == [user.login for user in on_head.users]
        assert not on_tail.users
        assert {(a.login, a.uid, a.leaving) for a in on_tail.accounts} >= {(found.login, found.uid, False)}
        assert [(g.name, g.gid, g.logins) for g in on_tail.groups] == [
            (g.name, g.gid, g.logins) for g in on_head.groups
        ]
        assert found.login in on_tail.groups[0].logins
        # The right is real, and only where it is one.
        assert (await mia.client.allocations.access(by_name["one"], PUBLIC_KEY)).login == found.login
        with pytest.raises(ForbiddenError):
            await mia.client.allocations.access(by_name["two"], PUBLIC_KEY)
        # Who looks on has no business with the names of others.
        with pytest.raises(ForbiddenError):
            await vic.client.instances.people(instance.id).all()


async def test_who_comes_later_is_there_within_seconds_and_who_leaves_loses_the_log_in_at_once(
    world: World, settings: Settings
) -> None:
    instance = await deployed(world)
    async with person(world, "joe", None) as joe:
        assert joe.user.id not in await people_of(world, instance)
        membership = await world.admin.memberships.create(joe.user.id, Role.PROJECT_MEMBER, project_id=world.project.id)
        found = await settled(world, instance, joe)
        head = next(e.allocation_id for e in found.entries if e.log_in)
        await world.admin.memberships.delete(membership.id)
        with pytest.raises((ForbiddenError, NotFoundError)):
            await joe.client.allocations.access(head, PUBLIC_KEY)

        async def leaving() -> bool:
            left = (await people_of(world, instance)).get(joe.user.id)
            return left is not None and left.left_at is not None and not left.may_log_in

        await eventually("the person to be shown as leaving", leaving)
        # The door is shut, and what an app runs for the person is left to the app for a while.
        spec = told(world, head)
        assert found.login not in {user.login for user in spec.users}
        assert [(a.login, a.leaving) for a in spec.accounts if a.login == found.login] == [(found.login, True)]
        with connect(settings) as database:
            database.execute("UPDATE grants SET leaving_until = now() WHERE leaving_until IS NOT NULL")

        async def gone() -> bool:
            spec = told(world, head)
            return found.login not in {a.login for a in spec.accounts}

        await eventually("the machine to be told that the time is over", gone)


async def test_a_disabled_person_is_none_of_the_people(world: World) -> None:
    async with person(world, "dan") as dan:
        instance = await deployed(world)
        await settled(world, instance, dan)
        await world.admin.users.update(dan.user.id, disabled=True)

        async def left() -> bool:
            found = (await people_of(world, instance)).get(dan.user.id)
            return found is None or found.left_at is not None

        await eventually("the disabled person to leave", left)
        await world.admin.users.update(dan.user.id, disabled=False)
        assert (await settled(world, instance, dan)).left_at is None


async def test_a_grant_on_the_entrance_makes_a_person_and_stays_the_persons_own(world: World) -> None:
    instance = await deployed(world)
    head = next(
        m.allocation_id for m in await world.admin.instances.members(instance.id).all() if m.component_key == "head"
    )
    async with person(world, "gil", Role.PROJECT_VIEWER) as gil:
        grant = await world.admin.grants.create(head, gil.user.email)
        found = await settled(world, instance, gil)
        assert found.role == "grant"
        assert (await world.admin.grants.get(grant.id)).instance_id is None
        assert found.login not in told(world, head).temporary
        await world.admin.grants.revoke(grant.id)

        async def left() -> bool:
            return (await people_of(world, instance))[gil.user.id].left_at is not None

        await eventually("the person without a grant to leave", left)


async def test_a_grant_that_the_platform_made_is_replaced_by_ones_own_and_revoked_by_nobody(world: World) -> None:
    async with person(world, "rob") as rob:
        instance = await deployed(world)
        found = await settled(world, instance, rob)
        head = next(e.allocation_id for e in found.entries if e.log_in)
        made = [g for g in await world.admin.grants.list(head).all() if g.user_id == rob.user.id]
        assert [g.instance_id for g in made] == [instance.id]
        with pytest.raises(InvalidStateError, match="remove the person from the project"):
            await world.admin.grants.revoke(made[0].id)
        own = await world.admin.grants.create(head, rob.user.email, sudo=True)
        assert (own.instance_id, own.sudo) == (None, True)
        await world.grant_at_rest(own.id)
        await world.admin.grants.revoke(own.id)

        async def made_again() -> bool:
            live = [g for g in await world.admin.grants.list(head).all() if g.user_id == rob.user.id]
            return any(g.instance_id == instance.id and g.status == "active" for g in live)

        await eventually("the platform to make its own again", made_again)


async def test_an_app_without_an_entrance_has_no_people(world: World) -> None:
    async with person(world, "nan"):
        instance = await deployed(world, entrance=False)
        other = [task.spec for task in world.node.taken if isinstance(task.spec, SetUsers)]
        assert (await people_of(world, instance), other) == ({}, [])


async def test_people_of_another_tenants_instance_are_not_found(world: World) -> None:
    instance = await deployed(world)
    async with World.create(world.admin, secrets.token_hex(4)) as another, person(another, "eve") as eve:
        with pytest.raises(NotFoundError):
            await eve.client.instances.people(instance.id).all()


async def test_the_feed_says_that_people_changed(world: World) -> None:
    instance = await deployed(world)
    async with person(world, "fay") as fay:
        await settled(world, instance, fay)
        events = await world.admin.history.events(instance.id, noun="instance", event="people_changed").all()
        assert any("u-fay" in each.message for each in events)


async def test_somebody_whom_a_machine_cannot_make_keeps_nobody_else_out(world: World) -> None:
    async with person(world, "kim") as kim, person(world, "lou") as lou:
        instance = await deployed(world)
        found = await settled(world, instance, kim)
        await settled(world, instance, lou)
        world.node.refuses[found.login] = f"this machine has a user {found.login} of its own"
        # Anew on both machines, and refused there.
        await world.admin.users.update(kim.user.id, disabled=True)
        await world.admin.users.update(kim.user.id, disabled=False)

        async def refused() -> bool:
            entries = (await people_of(world, instance))[kim.user.id].entries
            return {(entry.status, entry.reason) for entry in entries} == {
                ("failed", f"this machine has a user {found.login} of its own")
            }

        await eventually("the refusal to be shown", refused)
        assert (await settled(world, instance, lou)).may_log_in
        assert not (await people_of(world, instance))[kim.user.id].may_log_in


async def test_a_controller_hears_of_a_newcomer_without_waiting_for_its_next_look(world: World) -> None:
    ready: list[set[str]] = []

    async def observe(context: ObserveContext) -> None:
        people = await context.people()
        ready.append({each.user_id for each in people if each.may_log_in})

    controller = Controller(
        world.controller,
        {},
        holder="one",
        machines=lambda client, claim: NoMachines(),
        observe=observe,
        # Nothing in this test lasts that long: whoever is seen was heard of.
        observe_seconds=600,
        observed_machines=lambda client, claim, correlation: NoMachines(),
    )
    await deployed(world)
    task = asyncio.create_task(controller.run())
    try:
        await eventually("a first look", lambda: _any(ready))
        async with person(world, "zoe") as zoe:
            await eventually("the newcomer to be seen", lambda: _any([zoe.user.id in each for each in ready]))
    finally:
        controller.stop()
        await task


async def _any(found: list[Any]) -> bool:
    return any(found) if found and isinstance(found[0], bool) else bool(found)
