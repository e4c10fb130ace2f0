"""The people of an instance, as they are read."""

from gpuaas_contract.grants import GrantStatus
from gpuaas_contract.people import Person, PersonEntry, PersonPage
from gpuaas_platform.access.records import GrantView, PersonRecord, UnixGroupRecord
from gpuaas_platform.access.storage import people as store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.instances.service.instances import require_instance


async def list_people(tx: Transaction, caller: Caller, instance_id: str, cursor: str | None, limit: int) -> PersonPage:
    instance = await require_instance(tx, caller, instance_id, Permission.PEOPLE_READ)
    rows, after = cut_page(await store.list_page(tx, instance_id, decode_cursor(cursor), limit + 1), limit)
    group = await store.get_group(tx, instance.project_id)
    entries: dict[str, list[GrantView]] = {row.user_id: [] for row in rows}
    for entry in await store.list_entries(tx, instance_id, list(entries)):
        entries[entry.user_id].append(entry)
    people = []
    for row in rows:
        assert group is not None, "who is one of the people has a group"
        people.append(to_person(row, instance.project_id, group, entries[row.user_id]))
    return PersonPage(items=people, next_cursor=after)


def to_person(row: PersonRecord, project_id: str, group: UnixGroupRecord, entries: list[GrantView]) -> Person:
    shown = [
        PersonEntry(
            allocation_id=entry.allocation_id,
            allocation_name=entry.allocation_name,
            log_in=not entry.account_only and entry.status != GrantStatus.REVOKING,
            status=entry.status,
            reason=entry.reason,
        )
        for entry in entries
    ]
    may_log_in = any(entry.log_in and entry.status == GrantStatus.ACTIVE for entry in shown)
    return to_wire(
        Person,
        row,
        project_id=project_id,
        group=group.name,
        gid=group.gid,
        may_log_in=row.left_at is None and may_log_in,
        entries=shown,
    )
