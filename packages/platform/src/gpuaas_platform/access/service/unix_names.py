"""Names and numbers that people and projects have on all machines: made when they are first needed, and kept."""

from typing import Protocol

from gpuaas_contract.problems import Code
from gpuaas_platform.access.records import UnixGroupRecord, UnixUserRecord
from gpuaas_platform.access.rules.logins import group_for, is_of_people, login_for
from gpuaas_platform.access.storage import grants as store
from gpuaas_platform.access.storage import people as people_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal


class Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def email(self) -> str: ...


async def ensure_unix_user(tx: Transaction, user: Named) -> UnixUserRecord:
    found = await store.get_unix_user(tx, user.id)
    if found is None:
        uid = await store.next_uid(tx)
        await store.insert_unix_user(tx, user.id, await _choose_login(tx, user, uid), uid)
        found = await store.get_unix_user(tx, user.id)
    elif not is_of_people(found.login) and not await store.is_person_anywhere(tx, user.id):
        # A name from before there was a namespace is kept for as long as any machine knows the person by it.
        found = await _rename_unix_user(tx, user)
    if found is None:
        raise Refusal(Code.UNAVAILABLE, "somebody of the same name is being given a number; try again", retry_after=1)
    return found


async def _rename_unix_user(tx: Transaction, user: Named) -> UnixUserRecord:
    await store.lock_logins(tx)
    found = await store.get_unix_user(tx, user.id)
    assert found is not None
    if is_of_people(found.login):
        return found
    return await store.rename_unix_user(tx, user.id, await _choose_login(tx, user, found.uid))


async def _choose_login(tx: Transaction, user: Named, uid: int) -> str:
    login = login_for(user.email, uid, taken=False)
    return login_for(user.email, uid, taken=True) if await store.is_login_taken(tx, login) else login


async def ensure_group(tx: Transaction, project_id: str, project_name: str) -> UnixGroupRecord:
    """Projects of different tenants may have one name: the second gets its number with it."""
    found = await people_store.get_group(tx, project_id)
    if found is None:
        gid = await store.next_uid(tx)
        for taken in (False, True):
            name = group_for(project_name, gid, taken=taken)
            found = found or await people_store.insert_group(tx, project_id, name, gid)
        found = found or await people_store.get_group(tx, project_id)
    if found is None:
        raise Refusal(Code.UNAVAILABLE, "a group of the same name is being given a number; try again", retry_after=1)
    return found
