"""Reconcile leases: one controller at a time looks after an instance, as an observer. A change takes an operation."""

from gpuaas_contract import ids
from gpuaas_contract.access import LEASE_CERTIFICATE_SECONDS, OBSERVER_LOGIN, AccessGrant, LeaseAccessRequest
from gpuaas_contract.events import ReconcileLeaseEvent
from gpuaas_contract.operations import ClaimRequest
from gpuaas_contract.problems import Code
from gpuaas_contract.reconcile import RECONCILE_LEASE_SECONDS, ReconcileClaim, ReconcileLease
from gpuaas_platform.access.records import NewAccessGrant
from gpuaas_platform.access.rules.logins import lease_principal
from gpuaas_platform.access.rules.reach import reach_observable
from gpuaas_platform.access.service.authorities import Authorities, check_ssh_key
from gpuaas_platform.access.service.leases import LeaseDoors
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.access.storage import leases as lease_store
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.instances.records import ReconcileLeaseRecord
from gpuaas_platform.instances.service.instances import require_instance
from gpuaas_platform.instances.service.reconcile_ends import end_lease, tell
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.instances.storage import reconcile as store


async def claim_lease(tx: Transaction, caller: Caller, instance_id: str, body: ClaimRequest) -> ReconcileClaim:
    instance = await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK, lock=True)
    tx.match(instance)
    if instance.ended_at is not None:
        raise Refusal(Code.INVALID_STATE, "the instance is decommissioned: there is nothing to look after")
    row = await store.claim(tx, instance_id, body.holder, caller.id, RECONCILE_LEASE_SECONDS)
    if row is None:
        held = await store.get(tx, instance_id)
        who = held.holder if held is not None else "somebody"
        raise Refusal(Code.LEASE_HELD, f"{who} looks after the instance", retry_after=RECONCILE_LEASE_SECONDS)
    await access_store.end_of_reconcile(tx, instance_id)
    await tell(tx, instance, row, ReconcileLeaseEvent.CLAIMED, f"{body.holder} looks after the instance")
    detail = {"holder": body.holder, "fencing_token": row.fencing_token}
    await tx.audit("reconcile_lease.claim", instance_id, project_id=instance.project_id, detail=detail)
    return ReconcileClaim(
        lease=to_wire(ReconcileLease, row),
        fencing_token=row.fencing_token,
        lease_seconds=RECONCILE_LEASE_SECONDS,
    )


async def require_lease(tx: Transaction, caller: Caller, instance_id: str, fencing_token: int) -> ReconcileLeaseRecord:
    """Lock the lease where the caller holds it under exactly this token. Ask for the permission before."""
    row = await store.lock(tx, instance_id)
    mine = row is not None and row.account_id == caller.id and row.fencing_token == fencing_token
    if row is None or not mine or row.expired:
        state = "nobody holds it" if row is None else "it is held under another token, or expired"
        detail = f"this reconcile lease on {instance_id} is over ({state}); stop, and claim it again if you may"
        raise Refusal(Code.STALE_LEASE, detail)
    return row


async def heartbeat(tx: Transaction, caller: Caller, instance_id: str, fencing_token: int) -> ReconcileLease:
    await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK)
    await require_lease(tx, caller, instance_id, fencing_token)
    return to_wire(ReconcileLease, await store.extend(tx, instance_id, RECONCILE_LEASE_SECONDS))


async def yield_lease(tx: Transaction, caller: Caller, instance_id: str, fencing_token: int) -> ReconcileLease:
    """End the lease, and return it as it was."""
    instance = await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK, lock=True)
    row = await require_lease(tx, caller, instance_id, fencing_token)
    await end_lease(tx, instance, f"{row.holder} gave the lease back")
    return to_wire(ReconcileLease, row, expired=True)


class ObserverAccess:
    """Certificates for all machines of an instance, as a user who may look and nothing else."""

    def __init__(self, database: Database, authorities: Authorities, doors: LeaseDoors) -> None:
        self._database = database
        self._authorities = authorities
        self._doors = doors

    async def grant(
        self, caller: Caller, correlation_id: str, instance_id: str, body: LeaseAccessRequest
    ) -> AccessGrant:
        principal = lease_principal(instance_id, body.fencing_token)
        async with self._database.transaction(caller.id, correlation_id) as tx:
            instance = await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK)
            await require_lease(tx, caller, instance_id, body.fencing_token)
            check_ssh_key(body.public_key)
            rows = await allocation_store.list_by_ids(
                tx, await instance_store.list_machine_ids(tx, instance_id), lock=False
            )
            machines, left_out = reach_observable(rows)
            grant = await access_store.insert(
                tx,
                ids.new_id(ids.ACCESS_GRANT),
                NewAccessGrant(
                    project_id=instance.project_id,
                    owner_id=instance.project_id,
                    allocation_ids=[row.id for row in machines],
                    login=OBSERVER_LOGIN,
                    seconds=LEASE_CERTIFICATE_SECONDS,
                    reconciled_instance_id=instance_id,
                ),
            )
            opened = [row.id for row in machines]
            await lease_store.open_for(tx, principal, OBSERVER_LOGIN, opened, reconciled_instance_id=instance_id)
            detail = {"grant": grant.id, "machines": list(grant.allocation_ids), "login": OBSERVER_LOGIN}
            await tx.audit("access.grant", instance_id, project_id=instance.project_id, detail=detail)
        key_id = f"{principal}/{correlation_id}"
        answer = await self._authorities.certify(
            grant,
            machines,
            body.public_key,
            key_id,
            LEASE_CERTIFICATE_SECONDS,
            left_out=left_out,
            lease_principal=principal,
        )
        await self._doors.wait_until_open(principal)
        return answer
