"""The SSH authority of each owner of machines: what it signs, and what it takes for a key."""

from collections.abc import Sequence

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from gpuaas_contract.access import CERTIFICATE_SECONDS, AccessGrant, DirectAccess, MachineAddress
from gpuaas_contract.agent_link import HostCertificate, HostCertificateRequest
from gpuaas_contract.allocations import AllocationStatus, ShapeKind
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.adapters.openbao import OpenBao
from gpuaas_platform.domain.errors import Refusal, not_found
from gpuaas_platform.domain.policy import Caller
from gpuaas_platform.services import shapes
from gpuaas_platform.services.allocations import audit
from gpuaas_platform.services.placement import certificate_principal
from gpuaas_platform.storage import allocations as allocation_store
from gpuaas_platform.storage.database import Database, Row


class Authorities:
    """Signing happens in OpenBao, outside of transactions: the grant first, then its certificate."""

    def __init__(self, database: Database, openbao: OpenBao) -> None:
        self._database = database
        self._openbao = openbao
        self._authorities: dict[str, str] = {}

    async def _authority(self, owner_id: str) -> str:
        """The public key of the SSH authority of a project or tenant, made on first use."""
        if owner_id not in self._authorities:
            async with self._database.exclusively(f"ssh-authority/{owner_id}"):
                self._authorities[owner_id] = await self._openbao.ensure_authority(owner_id)
        return self._authorities[owner_id]

    async def certify(
        self, grant: Row, machines: Sequence[Row], public_key: str, key_id: str, seconds: int = CERTIFICATE_SECONDS
    ) -> AccessGrant:
        owner_id = grant["owner_id"]
        authority = await self._authority(owner_id)
        certified = [row for row in machines if shapes.kind_of(row) != ShapeKind.EXTERNAL]
        principals = [grant["grant_id"] or certificate_principal(grant["login"], row["id"]) for row in certified]
        certificate = ""
        if principals:
            certificate = await self._openbao.sign_user_key(owner_id, public_key, principals, seconds, key_id)
        return AccessGrant(
            id=grant["id"],
            login=grant["login"],
            certificate=certificate,
            host_authority=authority,
            machines=[
                MachineAddress(
                    allocation_id=row["id"],
                    hostname=row["hostname"],
                    address=row["address"],
                    host_principal=row["id"],
                    direct=_direct(row),
                )
                for row in machines
            ],
            expires_at=grant["expires_at"],
        )

    async def certify_host(self, node: Caller, correlation_id: str, body: HostCertificateRequest) -> HostCertificate:
        async with self._database.transaction(node.id, correlation_id) as tx:
            row = await allocation_store.get(tx, body.allocation_id)
            if row is None or row["node_id"] != node.id or row["status"] == AllocationStatus.RELEASED:
                raise not_found("allocation", body.allocation_id)
            check_ssh_key(body.public_key)
            await audit(tx, "access.certify_host", row)
        authority = await self._authority(row["owner_id"])
        return HostCertificate(
            certificate=await self._openbao.sign_host_key(row["owner_id"], body.public_key, row["id"]),
            user_authority=authority,
        )


def _direct(row: Row) -> DirectAccess | None:
    external = row["shape"].get("external")
    return None if external is None else DirectAccess.model_validate(external)


def check_ssh_key(public_key: str) -> None:
    """Before anything is written: the authority would refuse it only after the grant was made."""
    try:
        key = load_ssh_public_key(public_key.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        detail = "public_key must be an ed25519 key in OpenSSH form"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/public_key", detail=detail)])
