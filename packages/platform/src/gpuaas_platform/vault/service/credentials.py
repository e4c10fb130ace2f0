"""Access credentials: what is known of them here, and their lives. Their keys lie in OpenBao."""

from collections.abc import Sequence

from pydantic import SecretStr

from gpuaas_contract import ids
from gpuaas_contract.credentials import (
    VALID_VERSIONS,
    Credential,
    CredentialCreate,
    CredentialPage,
    CredentialRotate,
    CredentialStatus,
    CredentialVersion,
)
from gpuaas_contract.events import CredentialEvent
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import Code
from gpuaas_contract.secret_deliveries import Encoding
from gpuaas_platform.access.rules.ssh_keys import SshKey, generate_key, read_key
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.tenants import require_project, visible_projects
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import OperationView
from gpuaas_platform.vault.records import CredentialRecord, CredentialView, SecretVersionRecord, StoredState
from gpuaas_platform.vault.service import versions as secret_versions
from gpuaas_platform.vault.service.versions import SecretKeeper
from gpuaas_platform.vault.storage import credentials as store
from gpuaas_platform.vault.storage import versions as version_store

NOUN = "credential"


async def _to_models(tx: Transaction, rows: Sequence[CredentialRecord]) -> list[Credential]:
    found = await secret_versions.by_owner(tx, [row.id for row in rows])
    versions = {id: [to_wire(CredentialVersion, version) for version in those] for id, those in found.items()}
    return [to_wire(Credential, row, versions=versions[row.id]) for row in rows]


async def _to_model(tx: Transaction, row: CredentialRecord) -> Credential:
    return (await _to_models(tx, [row]))[0]


async def require_credential(
    tx: Transaction, caller: Caller, credential_id: str, permission: Permission, *, lock: bool = False
) -> CredentialView:
    row = await (store.lock if lock else store.get)(tx, credential_id)
    if row is None:
        raise not_found(NOUN, credential_id)
    caller.require(permission, Scope(tenant_id=row.tenant_id, project_id=row.project_id), NOUN, credential_id)
    if lock:
        tx.match(row)
    return row


def require_active(row: CredentialRecord) -> None:
    if row.status != CredentialStatus.ACTIVE:
        raise Refusal(Code.INVALID_STATE, f"credential {row.name} is {row.status}")


async def _changed(
    tx: Transaction, row: CredentialRecord, event: CredentialEvent, action: str, **detail: object
) -> None:
    await tx.changed(event, row, project_id=row.project_id)
    await tx.audit(f"{NOUN}.{action}", row.id, project_id=row.project_id, detail=detail)


async def get_credential(tx: Transaction, caller: Caller, credential_id: str) -> Credential:
    return await _to_model(tx, await require_credential(tx, caller, credential_id, Permission.CREDENTIAL_READ))


async def list_credentials(
    tx: Transaction, caller: Caller, project_id: str | None, cursor: str | None, limit: int
) -> CredentialPage:
    projects = await visible_projects(tx, caller, project_id, Permission.CREDENTIAL_READ)
    rows, after = cut_page(await store.list_matching(tx, projects, decode_cursor(cursor), limit + 1), limit)
    return CredentialPage(items=await _to_models(tx, rows), next_cursor=after)


def _key_from(private_key: SecretStr | None) -> SshKey:
    return generate_key() if private_key is None else read_key(private_key.get_secret_value())


class CreateCredential:
    """An outside effect. Nothing of the credential is there before its key is kept."""

    def __init__(self, keeper: SecretKeeper, caller: Caller, body: CredentialCreate) -> None:
        self._keeper = keeper
        self._caller = caller
        self._body = body
        self._id = ids.new_id(ids.CREDENTIAL)

    async def intend(self, tx: Transaction) -> None:
        project_id, name = self._body.project_id, self._body.name
        await require_project(tx, self._caller, project_id, Permission.CREDENTIAL_MANAGE)
        await secret_versions.refuse_in_flight(tx)
        self._key = _key_from(self._body.private_key)
        if await store.get_by_name(tx, project_id, name) is not None:
            raise self._name_taken()
        await version_store.intend(tx, self._id, 1, project_id, **self._key.facts)

    async def act(self) -> None:
        await self._keeper.keep(self._id, 1, self._key.private_key, Encoding.TEXT)

    async def finish(self, tx: Transaction) -> Credential:
        row = await store.insert(tx, self._id, self._body.project_id, self._body.name)
        if row is None:
            raise self._name_taken()
        await secret_versions.settle(tx, self._id, 1)
        await _changed(
            tx, row, CredentialEvent.CREATED, "create", fingerprint=self._key.fingerprint, origin=self._key.origin
        )
        return await _to_model(tx, row)

    async def abandon(self, tx: Transaction) -> None:
        await version_store.abandon(tx, self._id, 1)

    def _name_taken(self) -> Refusal:
        return Refusal(Code.NAME_TAKEN, f"the project has a credential named {self._body.name!r} already")


class RotateCredential:
    """An outside effect: one more valid version, beside the one before it."""

    def __init__(self, keeper: SecretKeeper, caller: Caller, credential_id: str, body: CredentialRotate) -> None:
        self._keeper = keeper
        self._caller = caller
        self._id = credential_id
        self._body = body

    async def _lock(self, tx: Transaction) -> CredentialView:
        row = await require_credential(tx, self._caller, self._id, Permission.CREDENTIAL_MANAGE, lock=True)
        require_active(row)
        return row

    async def intend(self, tx: Transaction) -> None:
        row = await self._lock(tx)
        await secret_versions.refuse_in_flight(tx)
        self._key = _key_from(self._body.private_key)
        versions = await version_store.list_of(tx, [self._id])
        if any(version.fingerprint == self._key.fingerprint for version in versions):
            raise Refusal(Code.INVALID_STATE, f"credential {row.name} has or had this very key: take another one")
        _require_room(self._id, versions)
        self._version = await secret_versions.next_number(tx, self._id)
        await version_store.intend(tx, self._id, self._version, row.project_id, **self._key.facts)

    async def act(self) -> None:
        await self._keeper.keep(self._id, self._version, self._key.private_key, Encoding.TEXT)

    async def finish(self, tx: Transaction) -> Credential:
        await self._lock(tx)
        await secret_versions.settle(tx, self._id, self._version)
        row = await store.touch(tx, self._id)
        await _changed(
            tx, row, CredentialEvent.ROTATED, "rotate", version=self._version, fingerprint=self._key.fingerprint
        )
        return await _to_model(tx, row)

    async def abandon(self, tx: Transaction) -> None:
        await version_store.abandon(tx, self._id, self._version)


def _require_room(credential_id: str, versions: list[SecretVersionRecord]) -> None:
    """Count versions that are being written, too: two who rotate at once do not make three."""
    open_ones = [row.version for row in versions if row.state in {StoredState.WRITING, StoredState.VALID}]
    if len(open_ones) >= VALID_VERSIONS:
        raise Refusal(
            Code.KEY_LIMIT,
            f"versions {', '.join(map(str, open_ones))} are valid; end the one that is not used any more first",
            allowed_actions=[
                Offer.END_CREDENTIAL_VERSION.action(
                    "end", f"End version {version}", credential_id=credential_id, number=version
                )
                for version in open_ones
            ],
        )


async def end_version(tx: Transaction, caller: Caller, credential_id: str, version: int) -> Credential:
    await require_credential(tx, caller, credential_id, Permission.CREDENTIAL_MANAGE, lock=True)
    versions = await version_store.list_of(tx, [credential_id])
    valid = [found.version for found in versions if found.state == StoredState.VALID]
    if version not in valid:
        raise not_found("valid version", str(version))
    if valid == [version]:
        detail = f"version {version} is the only valid one; rotate first, or revoke the credential"
        raise Refusal(Code.INVALID_STATE, detail)
    await version_store.end(tx, credential_id, version)
    row = await store.touch(tx, credential_id)
    await _changed(tx, row, CredentialEvent.VERSION_ENDED, "end_version", version=version)
    return await _to_model(tx, row)


async def revoke_credential(tx: Transaction, caller: Caller, credential_id: str) -> Credential:
    """At once: also what was wrapped before cannot be unwrapped any more."""
    require_active(await require_credential(tx, caller, credential_id, Permission.CREDENTIAL_MANAGE, lock=True))
    await version_store.end(tx, credential_id)
    row = await store.touch(tx, credential_id, status=CredentialStatus.REVOKED)
    await _changed(tx, row, CredentialEvent.REVOKED, "revoke")
    return await _to_model(tx, row)


async def delete_credential(tx: Transaction, caller: Caller, credential_id: str) -> Credential:
    """Whatever the secrets server says: its keys are destroyed there as soon as that is possible."""
    await require_credential(tx, caller, credential_id, Permission.CREDENTIAL_MANAGE, lock=True)
    await version_store.end(tx, credential_id)
    row = await store.touch(tx, credential_id, delete=True)
    await _changed(tx, row, CredentialEvent.DELETED, "delete", name=row.name)
    return await _to_model(tx, row)


async def _require_chosen(tx: Transaction, operation: OperationView, credential: CredentialRecord) -> None:
    """Allow what was chosen for the operation's instance, and what its external machines name; where none was chosen,
    no other one."""
    assert operation.instance_id is not None, "a preflight gets no secrets"
    chosen = await instance_store.list_chosen_credentials(tx, operation.instance_id)
    if credential.id in chosen.values():
        return
    for allocation_id in await instance_store.list_machine_ids(tx, operation.instance_id):
        machine = await allocation_store.get(tx, allocation_id)
        external = machine.shape.external if machine is not None else None
        if external is not None and external.credential_id == credential.id:
            return
    detail = f"credential {credential.name} was not chosen for this instance; the deploy names those that it gets"
    raise Refusal(Code.FORBIDDEN, detail, denied=True)


async def choose_version(
    tx: Transaction, operation: OperationView, version: int | None, *, credential_id: str
) -> SecretVersionRecord:
    """Choose the version to deliver to the holder of an operation's lease, in the credential's own project only."""
    row = await store.lock(tx, credential_id)
    if row is None or row.project_id != operation.project_id:
        raise not_found(NOUN, credential_id)
    await _require_chosen(tx, operation, row)
    require_active(row)
    return await secret_versions.choose(tx, credential_id, version, f"credential {row.name}")
