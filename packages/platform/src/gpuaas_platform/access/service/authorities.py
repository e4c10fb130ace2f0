"""The SSH authority of each owner of machines: what it signs, and what it takes for a key."""

from collections.abc import Mapping, Sequence

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from gpuaas_contract.access import (
    CERTIFICATE_SECONDS,
    HOST_CERTIFICATE_SECONDS,
    AccessGrant,
    DirectAccess,
    MachineAddress,
    MachineLeftOut,
)
from gpuaas_contract.agent_link import HostCertificate, HostCertificateRequest
from gpuaas_contract.allocations import AllocationStatus, ShapeKind
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.access.records import AccessGrantRecord, AuthorityVersionRecord, KeyState
from gpuaas_platform.access.rules.ssh_keys import read_public_key
from gpuaas_platform.access.storage import authorities as store
from gpuaas_platform.allocations.records import AllocationRecord, AllocationView
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.identity.rules.policy import Caller


class Authorities:
    """Signing happens in OpenBao, outside of transactions: the grant first, then its certificate."""

    def __init__(self, database: Database, openbao: OpenBao, host_seconds: int = HOST_CERTIFICATE_SECONDS) -> None:
        self._database = database
        self._openbao = openbao
        self._host_seconds = host_seconds
        """Life of a host certificate."""

    async def _active(self, owner_id: str) -> list[AuthorityVersionRecord]:
        """The valid versions of the SSH authority of a project or tenant, oldest first; one is made on first use."""
        async with self._database.system_transaction() as tx:
            found = await store.list_active(tx, owner_id)
        if found:
            return found
        key = read_public_key(await self.make(owner_id, 1))
        async with self._database.system_transaction() as tx:
            await store.lock(tx, owner_id)
            await store.insert(tx, owner_id, 1, KeyState.ACTIVE, key.public_key, key.fingerprint)
            return await store.list_active(tx, owner_id)

    async def make(self, owner_id: str, version: int) -> str:
        """The public key of a version; looked up where it was made before."""
        async with self._database.exclusively(f"ssh-authority/{owner_id}"):
            return await self._openbao.ensure_authority(owner_id, version)

    async def sweep(self) -> None:
        """Destroy the keys of versions that were retired."""
        async with self._database.system_transaction() as tx:
            retiring = await store.list_retiring(tx)
        for row in retiring:
            await self._openbao.destroy_authority(row.owner_id, row.version)
            async with self._database.system_transaction() as tx:
                await store.set_state(tx, row.owner_id, row.version, KeyState.RETIRED)

    async def certify(
        self,
        grant: AccessGrantRecord,
        machines: Sequence[AllocationView],
        public_key: str,
        key_id: str,
        seconds: int = CERTIFICATE_SECONDS,
        chosen: Mapping[str, str] | None = None,
        left_out: Sequence[MachineLeftOut] = (),
        lease_principal: str | None = None,
    ) -> AccessGrant:
        """Sign a certificate for the machines that trust one; the others are opened by the access credential of an
        external machine, or by the one that is chosen for an allocation. The principal is that of the lease or the
        role, or else the grant: the machine lets it in only while that lasts."""
        owner_id, chosen = grant.owner_id, chosen or {}
        active = await self._active(owner_id)
        certified = list_certified(machines, chosen)
        ending = lease_principal or grant.grant_id
        assert ending is not None, "no certificate outlives the right that it is given by"
        certificate = ""
        if certified:
            version = _version_for(certified, active)
            certificate = await self._openbao.sign_user_key(owner_id, version, public_key, [ending], seconds, key_id)
        return AccessGrant(
            id=grant.id,
            login=grant.login,
            certificate=certificate,
            host_authority=_public_keys(active),
            machines=[_address_of(row, chosen.get(row.id), closed_at_end=row in certified) for row in machines],
            left_out=[*left_out],
            expires_at=grant.expires_at,
        )

    async def certify_host(self, node: Caller, correlation_id: str, body: HostCertificateRequest) -> HostCertificate:
        async with self._database.transaction(node.id, correlation_id) as tx:
            row = await allocation_store.get(tx, body.allocation_id)
            if row is None or row.node_id != node.id or row.status == AllocationStatus.RELEASED:
                raise not_found("allocation", body.allocation_id)
            check_ssh_key(body.public_key)
            await tx.audit_owned("access.certify_host", row)
        active = await self._active(row.owner_id)
        oldest, newest = active[0].version, active[-1].version
        certificate = await self._openbao.sign_host_key(
            row.owner_id, newest, body.public_key, row.id, self._host_seconds
        )
        async with self._database.transaction(node.id, correlation_id) as tx:
            await store.set_certified(tx, row.id, self._host_seconds)
            if row.status != AllocationStatus.ACTIVE:
                # It is being made, with exactly these; one that is there says so when it has them.
                await store.set_known(tx, row.id, oldest, newest)
        return HostCertificate(certificate=certificate, user_authority=_public_keys(active))


def list_certified(machines: Sequence[AllocationView], chosen: Mapping[str, str]) -> list[AllocationView]:
    """List the machines that a certificate opens, and not a stored key."""
    return [row for row in machines if row.shape.kind != ShapeKind.EXTERNAL and row.id not in chosen]


def _public_keys(active: Sequence[AuthorityVersionRecord]) -> str:
    return "\n".join(row.public_key for row in active)


def _version_for(machines: Sequence[AllocationRecord], active: Sequence[AuthorityVersionRecord]) -> int:
    """The newest that all of the machines trust already; one that was retired opens nothing any more."""
    known = min(machine.authority_newest for machine in machines)
    return max(active[0].version, min(known, active[-1].version))


def _address_of(row: AllocationView, chosen_credential_id: str | None, *, closed_at_end: bool) -> MachineAddress:
    external = row.shape.external
    assert row.address is not None, "an active machine has an address"
    return MachineAddress(
        allocation_id=row.id,
        hostname=row.hostname,
        address=row.address,
        host_principal=row.id,
        direct=None if external is None else DirectAccess.model_validate(external.model_dump()),
        credential_id=chosen_credential_id if external is None else None,
        closed_at_end=closed_at_end,
    )


def check_ssh_key(public_key: str) -> None:
    """Before anything is written: the authority would refuse it only after the grant was made."""
    try:
        key = load_ssh_public_key(public_key.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        detail = "public_key must be an ed25519 key in OpenSSH form"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/public_key", detail=detail)])
