"""The people of an instance: who may use it is read from the tables of rights; their entries on machines follow."""

from collections.abc import Mapping

from gpuaas_contract import ids
from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.events import GrantEvent, InstanceEvent
from gpuaas_platform.access.records import PersonRecord, WantedEntry, WantedPerson
from gpuaas_platform.access.rules.people import Difference, compare_entries, words_of
from gpuaas_platform.access.service import grants
from gpuaas_platform.access.service.unix_names import ensure_group, ensure_unix_user
from gpuaas_platform.access.storage import grants as grant_store
from gpuaas_platform.access.storage import people as store
from gpuaas_platform.accounts.storage import users as user_store
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction

AT_ONCE = 50


async def list_stale(tx: Transaction) -> list[str]:
    return await store.list_stale(tx, AT_ONCE)


async def sync(tx: Transaction, instance_id: str) -> None:
    """Say who came and who left, make and end entries, and tell the machines. Machines are locked before the
    instance; whoever changes rights meanwhile wakes the next round."""
    machines: dict[str, AllocationRecord] = {}
    for allocation_id in await store.list_machine_ids(tx, instance_id):
        machine = await allocation_store.lock(tx, allocation_id)
        assert machine is not None
        machines[allocation_id] = machine
    await store.lock(tx, instance_id)
    wanted = {person.user_id: person for person in await store.list_wanted(tx, instance_id)}
    said = {person.user_id: person for person in await store.list_said(tx, instance_id)}
    people = await _put_people(tx, instance_id, wanted, said)
    left = [person for user_id, person in said.items() if user_id not in wanted]
    await store.leave(tx, instance_id, [person.user_id for person in left])
    difference = compare_entries(
        await store.list_wanted_entries(tx, instance_id), await store.list_made(tx, instance_id), machines.keys()
    )
    same_people = {id: person.role for id, person in wanted.items()} == {id: person.role for id, person in said.items()}
    if same_people and not difference.gone and not difference.new:
        return
    instance = await store.touch(tx, instance_id)
    await ensure_group(tx, instance.project_id, instance.project_name)
    await _end_entries(tx, difference)
    for entry in difference.new:
        await _make_entry(tx, instance_id, machines[entry.allocation_id], people[entry.user_id], entry)
    came = [people[user_id] for user_id in wanted if user_id not in said]
    # The group of the project is on every machine, so each hears of everybody who came or left.
    touched = {row.allocation_id for row in difference.gone} | {entry.allocation_id for entry in difference.new}
    if came or left:
        touched = set(machines)
    for allocation_id in sorted(touched):
        if machines[allocation_id].status == AllocationStatus.ACTIVE and machines[allocation_id].node_id is not None:
            await grants.order_users(tx, machines[allocation_id])
    message = words_of([person.login for person in came], [person.login for person in left])
    await tx.changed(
        InstanceEvent.PEOPLE_CHANGED,
        instance,
        message=message,
        project_id=instance.project_id,
        instance_id=instance_id,
    )
    detail = {"came": [person.user_id for person in came], "left": [person.user_id for person in left]}
    await tx.audit("app_instance.people", instance_id, project_id=instance.project_id, detail=detail)


async def _put_people(
    tx: Transaction, instance_id: str, wanted: Mapping[str, WantedPerson], said: Mapping[str, PersonRecord]
) -> dict[str, PersonRecord]:
    """Return all of them with name and number; those that are new get theirs."""
    people = {}
    for user_id, person in wanted.items():
        known = said.get(user_id)
        if known is not None and known.role == person.role:
            people[user_id] = known
            continue
        user = await user_store.get(tx, user_id)
        assert user is not None
        unix = await ensure_unix_user(tx, user)
        people[user_id] = PersonRecord(
            user_id=user_id,
            email=person.email,
            role=person.role,
            since=person.since,
            login=unix.login,
            uid=unix.uid,
            left_at=None,
        )
        await store.put(tx, instance_id, people[user_id])
    return people


async def _end_entries(tx: Transaction, difference: Difference) -> None:
    again = {(entry.user_id, entry.allocation_id) for entry in difference.new}
    for row in difference.gone:
        if (row.user_id, row.allocation_id) in again:
            await grants.replace_made(tx, row, "the machine carries another component now")
        else:
            await grants.end(tx, row, "the person is not one of the people of the instance here any more")


async def _make_entry(
    tx: Transaction, instance_id: str, machine: AllocationRecord, person: PersonRecord, entry: WantedEntry
) -> None:
    unix = await grant_store.get_unix_user(tx, person.user_id)
    assert unix is not None
    row = await grant_store.insert(
        tx,
        ids.new_id(ids.GRANT),
        machine,
        person.user_id,
        person.email,
        unix,
        sudo=False,
        remote_forwarding=False,
        expires_at=None,
        instance_id=instance_id,
        account_only=entry.account_only,
    )
    if row is not None:
        made = {"login": row.login, "instance": instance_id, "account_only": row.account_only}
        await grants.tell(tx, row, GrantEvent.CREATED, "create", user_id=person.user_id, **made)
