"""Access to machines for the holder of an operation's lease."""

from gpuaas_contract import ids
from gpuaas_contract.access import (
    LEASE_CERTIFICATE_SECONDS,
    OBSERVER_LOGIN,
    OPERATOR_LOGIN,
    AccessGrant,
    OperationAccessRequest,
)
from gpuaas_platform.access.records import NewAccessGrant
from gpuaas_platform.access.rules.logins import lease_principal
from gpuaas_platform.access.rules.reach import reach_active, reach_observable
from gpuaas_platform.access.service.authorities import Authorities, check_ssh_key, list_certified
from gpuaas_platform.access.service.leases import LeaseDoors
from gpuaas_platform.access.storage import access as store
from gpuaas_platform.access.storage import leases as lease_store
from gpuaas_platform.allocations.records import AllocationView
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.catalogue.service.versions import manifest_of
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.identity.rules.policy import Caller
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.instances.storage import preflights as preflight_store
from gpuaas_platform.operations.records import OperationView
from gpuaas_platform.operations.service import operations
from gpuaas_platform.operations.storage import operations as operation_store


class OperationAccess:
    def __init__(self, database: Database, authorities: Authorities, doors: LeaseDoors) -> None:
        self._database = database
        self._authorities = authorities
        self._doors = doors

    async def grant(
        self, caller: Caller, correlation_id: str, operation_id: str, body: OperationAccessRequest
    ) -> AccessGrant:
        async with self._database.transaction(caller.id, correlation_id) as tx:
            operation = await operations.require_lease(tx, caller, operation_id, body.fencing_token)
            check_ssh_key(body.public_key)
            # A preflight looks at the machines that it names, and has no others.
            observer = body.observer and operation.preflight_id is None
            principal = lease_principal(operation_id, body.fencing_token, observer=observer)
            chosen: dict[str, str] = {}
            if observer:
                machines, left_out = reach_observable(await _list_all(tx, operation))
            else:
                machines, left_out = reach_active(await _list_own(tx, operation))
                if operation.instance_id is not None:
                    chosen = await instance_store.list_chosen_credentials(tx, operation.instance_id)
            login = OBSERVER_LOGIN if observer or operation.preflight_id is not None else OPERATOR_LOGIN
            grant = await store.insert(
                tx,
                ids.new_id(ids.ACCESS_GRANT),
                NewAccessGrant(
                    project_id=operation.project_id,
                    owner_id=operation.project_id,
                    allocation_ids=[row.id for row in machines],
                    login=login,
                    seconds=LEASE_CERTIFICATE_SECONDS,
                    operation_id=operation_id,
                ),
            )
            opened = [row.id for row in list_certified(machines, chosen)]
            await lease_store.open_for(tx, principal, login, opened, operation_id=operation_id)
            detail = {"grant": grant.id, "machines": list(grant.allocation_ids), "login": login}
            await tx.audit("access.grant", operation_id, project_id=operation.project_id, detail=detail)
        key_id = f"{principal}/{operation.correlation_id}"
        answer = await self._authorities.certify(
            grant,
            machines,
            body.public_key,
            key_id,
            LEASE_CERTIFICATE_SECONDS,
            chosen=chosen,
            left_out=left_out,
            lease_principal=principal,
        )
        await self._doors.wait_until_open(principal)
        return answer


async def _list_all(tx: Transaction, operation: OperationView) -> list[AllocationView]:
    """List the machines of all members of the instance."""
    assert operation.instance_id is not None
    machine_ids = await instance_store.list_machine_ids(tx, operation.instance_id)
    return await allocation_store.list_by_ids(tx, machine_ids, lock=False)


async def _list_own(tx: Transaction, operation: OperationView) -> list[AllocationView]:
    return await allocation_store.list_by_ids(tx, await list_machines(tx, operation), lock=False)


async def list_machines(tx: Transaction, operation: OperationView) -> list[str]:
    if operation.preflight_id is not None:
        preflight = await preflight_store.get(tx, operation.preflight_id)
        assert preflight is not None
        return list(preflight.allocation_ids)
    assert operation.instance_id is not None
    instance = await instance_store.get(tx, operation.instance_id)
    assert instance is not None
    return await operation_store.list_machine_ids(tx, operation, manifest_of(instance).primary.key)
