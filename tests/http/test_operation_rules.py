"""The rules of operations that Python and SQL both keep: which exclude each other, and which can be claimed.

Both are asked about every combination of facts, on real PostgreSQL."""

import itertools
from collections.abc import AsyncIterator

import pytest

from gpuaas_contract import ids
from gpuaas_contract.nouns import Noun
from gpuaas_contract.operations import ClaimRequest, OperationState
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.instances.rules.actions import excludes
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import NewOperation, OperationFilter, OperationView
from gpuaas_platform.operations.service import work
from gpuaas_platform.operations.storage import operations as store
from gpuaas_stack.postgres import DATABASE
from gpuaas_stack.settings import Settings
from tests.support.processes import fresh_database
from tests.support.service_world import SLUG, ServiceWorld

Target = tuple[str | None, str | None]
"""A member and the one that replaces it; neither for the whole instance."""

NO_LEASE, LIVE, EXPIRED = "NULL", "now() + interval '1 hour'", "now() - interval '1 second'"


@pytest.fixture
async def services(servers: Settings) -> AsyncIterator[ServiceWorld]:
    with fresh_database(servers, DATABASE) as url:
        async with ServiceWorld.opened(url) as world:
            yield world


async def test_an_operation_waits_for_those_before_it_that_exclude_it(services: ServiceWorld) -> None:
    deployed = await services.deploy(*await services.allocations(3))
    members = [member.id for member in await services.members(deployed.id)]
    targets: list[Target] = [(None, None), *((id, None) for id in members), *itertools.permutations(members, 2)]

    async def insert_all(tx: Transaction) -> list[OperationView]:
        instance = await instance_store.get(tx, deployed.id)
        assert instance is not None
        await tx.run("UPDATE operations SET state = 'succeeded'")
        # Twice: each comes before and after each other.
        for (member_id, replacement_id), state in [*itertools.product(targets, OperationState)] * 2:
            id = ids.new_id(Noun.OPERATION)
            wanted = NewOperation(
                id, "any", {}, 60, member_id=member_id, replacement_member_id=replacement_id, queued=True
            )
            await store.insert(tx, instance, wanted)
            await tx.run("UPDATE operations SET state = %(state)s WHERE id = %(id)s", state=state, id=id)
        return await store.list_matching(tx, OperationFilter(instance_id=deployed.id), "", 1_000)

    rows = [row for row in await services.act(insert_all) if row.queued]
    assert len(rows) == 2 * len(targets) * len(OperationState)
    for number, row in enumerate(rows):
        opened = [other for other in rows[:number] if not other.state.is_final]
        assert list(row.waits_for) == [other.id for other in opened if excludes(other, row)]


async def test_what_is_listed_as_claimable_is_what_a_controller_is_granted(services: ServiceWorld) -> None:
    (machine,) = await services.allocations(1)
    await services.deploy(machine)
    (operation,) = await services.claimable()
    controller = services.controller()
    listed: list[bool] = []

    for state, queued, cancelled in itertools.product(OperationState, (False, True), (False, True)):
        for lease in (LIVE, EXPIRED) if state == OperationState.RUNNING else (NO_LEASE,):

            async def look_then_claim(
                tx: Transaction,
                state: OperationState = state,
                queued: bool = queued,
                cancelled: bool = cancelled,
                lease: str = lease,
            ) -> None:
                await tx.run(
                    f"""UPDATE operations SET state = %(state)s, queued = %(queued)s,
                            cancel_requested = %(cancelled)s, lease_expires_at = {lease}""",
                    state=state,
                    queued=queued,
                    cancelled=cancelled,
                )
                rows = await store.list_matching(tx, OperationFilter(app_slug=SLUG, claimable_by="sva_x"), "", 10)
                listed.append([row.id for row in rows] == [operation.id])
                await work.claim_operation(tx, controller, operation.id, ClaimRequest(holder="one"))

            refusal = await services.attempt(look_then_claim)
            facts = f"{state}, queued: {queued}, cancel requested: {cancelled}, lease until {lease}"
            assert listed[-1] == (refusal is None), f"{facts}: {refusal}"
    assert set(listed) == {False, True}
