"""Reading the change feed."""

import base64
import binascii

from gpuaas_contract.changes import Change, ChangePage
from gpuaas_contract.problems import Code
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import Caller, Permission
from gpuaas_platform.services.identity import visible_projects
from gpuaas_platform.services.instances import require_instance
from gpuaas_platform.storage import changes as store
from gpuaas_platform.storage.database import Database
from gpuaas_platform.storage.wakeups import FEED, Wakeups

PAGE = 500
MAX_WAIT_SECONDS = 30


def _encode(position: int) -> str:
    return base64.urlsafe_b64encode(f"p{position}".encode()).decode()


def _decode(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii")).decode("ascii")
        if not text.startswith("p"):
            raise ValueError(text)
        return int(text[1:])
    except (ValueError, binascii.Error, UnicodeError) as error:
        raise Refusal(Code.CURSOR_INVALID, "this cursor was not made by the change feed") from error


class FeedService:
    def __init__(self, database: Database, wakeups: Wakeups) -> None:
        self._database = database
        self._wakeups = wakeups

    async def read(
        self,
        caller: Caller,
        correlation_id: str,
        since: str | None,
        wait: float,
        project_id: str | None,
        instance_id: str | None,
    ) -> ChangePage:
        """Wait outside of any transaction; what came in between is found by looking once more."""
        async with self._database.transaction(caller.id, correlation_id) as tx:
            if instance_id is not None:
                await require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
            projects = await visible_projects(tx, caller, project_id, Permission.PROJECT_READ)
            if since is None:
                return ChangePage(items=[], next_cursor=_encode(await store.head(tx)))
        position = _decode(since)
        for attempt in range(2):
            woken = self._wakeups.event(FEED)
            async with self._database.transaction(caller.id, correlation_id) as tx:
                # The head first: what is sequenced between the two queries is found by the next call.
                head = await store.head(tx)
                rows = await store.read(tx, position, projects, instance_id, PAGE)
            if rows or attempt or wait <= 0:
                break
            await self._wakeups.wait(woken, min(wait, MAX_WAIT_SECONDS))
        last = rows[-1]["position"] if rows else max(position, head)
        return ChangePage(items=[Change.model_validate(row) for row in rows], next_cursor=_encode(last))
