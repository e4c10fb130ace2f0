"""Access to machines for people."""

from gpuaas_contract import ids
from gpuaas_contract.access import PERSON_LOGIN, AccessGrant, AccessRequest
from gpuaas_platform.domain.policy import Caller, Permission
from gpuaas_platform.services import shapes
from gpuaas_platform.services.access import require_active
from gpuaas_platform.services.allocations import audit, require_allocation
from gpuaas_platform.services.authorities import CERTIFICATE_SECONDS, Authorities, check_ssh_key
from gpuaas_platform.storage import access as store
from gpuaas_platform.storage.database import Database


class PersonAccess:
    def __init__(self, database: Database, authorities: Authorities) -> None:
        self._database = database
        self._authorities = authorities

    async def grant(self, caller: Caller, correlation_id: str, allocation_id: str, body: AccessRequest) -> AccessGrant:
        async with self._database.transaction(caller.id, correlation_id) as tx:
            row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_ACCESS)
            shapes.require_support(row, "access")
            require_active(row)
            check_ssh_key(body.public_key)
            grant = await store.insert(
                tx,
                ids.new_id(ids.ACCESS_GRANT),
                row["project_id"],
                row["owner_id"],
                [allocation_id],
                PERSON_LOGIN,
                CERTIFICATE_SECONDS,
            )
            await audit(tx, "access.grant", row, {"grant": grant["id"]})
        return await self._authorities.certify(grant, [row], body.public_key, f"{caller.name}/{correlation_id}")
