"""Whether the controller of an app is connected: whether it was heard of lately, whatever it asked for."""

import time

from gpuaas_contract.findings import Finding, Severity
from gpuaas_contract.identity import PrincipalKind
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.identity.rules.operators import operator_finding
from gpuaas_platform.identity.rules.policy import Caller
from gpuaas_platform.identity.storage import presence as store
from gpuaas_platform.identity.storage.presence import CONNECTED_SECONDS

NOTE_SECONDS = 10
"""A process notes an account down at most this often."""
MOST_KNOWN = 10_000


class Presence:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted: dict[str, float] = {}

    async def saw(self, caller: Caller) -> None:
        """One write in a while for each controller, and nothing for anybody else."""
        if caller.kind != PrincipalKind.SERVICE_ACCOUNT or caller.app_slug is None:
            return
        now = time.monotonic()
        if now - self._noted.get(caller.id, -NOTE_SECONDS) < NOTE_SECONDS:
            return
        if len(self._noted) >= MOST_KNOWN:
            self._noted.clear()
        self._noted[caller.id] = now
        async with self._database.system_transaction() as tx:
            await store.note(tx, caller.id)


async def find_controller(
    tx: Transaction, app_slug: str, tenant_id: str, project_id: str, operator_id: str | None = None
) -> Finding | None:
    """Say what is wrong with the controller of an app; None where one is connected. Where an operator is named, only
    its controller counts."""
    if operator_id is not None:
        operator = await store.get_operator(tx, operator_id, tenant_id, project_id)
        return operator_finding(operator_id, operator, app_slug)
    row = await store.last_seen(tx, app_slug, tenant_id, project_id, CONNECTED_SECONDS)
    if row is not None and row.connected:
        return None
    if row is None:
        message = f"no service account is bound to {app_slug} in this project or its tenant"
        action = "create one for the app, and start its controller with it"
    elif row.seen_at is None:
        message = f"the controller of {app_slug} ({row.name}) has never been connected"
        action = "start the app's controller; what is asked for now waits for it"
    else:
        message = f"no controller of {app_slug} is connected; {row.name} was last seen at {row.seen_at:%FT%TZ}"
        action = "start the app's controller; what is asked for now waits for it"
    return Finding(severity=Severity.WARNING, code="no_controller", message=message, action=action)
