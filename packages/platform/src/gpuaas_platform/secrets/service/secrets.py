"""Run-time secrets of app instances: made here, kept in OpenBao, for the instance's controller."""

import base64
import secrets
from collections.abc import Sequence

from gpuaas_contract import ids
from gpuaas_contract.events import SecretEvent
from gpuaas_contract.problems import Code, FieldError
from gpuaas_contract.secret_deliveries import Encoding
from gpuaas_contract.secrets import Secret, SecretEnsure, SecretKind, SecretPage, SecretSpec, SecretVersion
from gpuaas_platform.catalogue.service.versions import manifest_of
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.instances.service.instances import require_instance
from gpuaas_platform.instances.service.preflights import refuse_in_preflight
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import OperationView
from gpuaas_platform.operations.service import operations
from gpuaas_platform.secrets.records import SecretRecord, SecretView
from gpuaas_platform.secrets.storage import secrets as store
from gpuaas_platform.vault.records import SecretVersionRecord, StoredState
from gpuaas_platform.vault.service import versions as secret_versions
from gpuaas_platform.vault.service.versions import SecretKeeper
from gpuaas_platform.vault.storage import versions as version_store

NOUN = "secret"
MOST_PER_INSTANCE = 100


async def _to_models(tx: Transaction, rows: Sequence[SecretView]) -> list[Secret]:
    versions = await secret_versions.by_owner(tx, [row.id for row in rows])
    shown = {id: [to_wire(SecretVersion, version) for version in found] for id, found in versions.items()}
    return [to_wire(Secret, row, versions=shown[row.id]) for row in rows]


async def _to_model(tx: Transaction, row: SecretView) -> Secret:
    return (await _to_models(tx, [row]))[0]


async def _changed_model(tx: Transaction, secret_id: str) -> Secret:
    row = await store.get(tx, secret_id)
    assert row is not None
    return await _to_model(tx, row)


async def _require(
    tx: Transaction, caller: Caller, secret_id: str, permission: Permission, *, lock: bool = False
) -> SecretView:
    row = await (store.lock if lock else store.get)(tx, secret_id)
    if row is None:
        raise not_found(NOUN, secret_id)
    scope = Scope(tenant_id=row.tenant_id, project_id=row.project_id, app_slug=row.app_slug)
    caller.require(permission, scope, NOUN, secret_id)
    return row


async def _changed(tx: Transaction, row: SecretRecord, event: SecretEvent, action: str, **detail: object) -> None:
    await tx.changed(event, row, project_id=row.project_id, instance_id=row.instance_id)
    await tx.audit(f"{NOUN}.{action}", row.id, project_id=row.project_id, detail={"name": row.name, **detail})


async def get_secret(tx: Transaction, caller: Caller, secret_id: str) -> Secret:
    return await _to_model(tx, await _require(tx, caller, secret_id, Permission.INSTANCE_READ))


async def list_secrets(tx: Transaction, caller: Caller, instance_id: str, cursor: str | None, limit: int) -> SecretPage:
    await require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    rows, after = cut_page(await store.list_of(tx, instance_id, decode_cursor(cursor), limit + 1), limit)
    return SecretPage(items=await _to_models(tx, rows), next_cursor=after)


def make_value(spec: SecretSpec) -> tuple[str, Encoding]:
    if spec.kind == SecretKind.BYTES:
        return base64.b64encode(secrets.token_bytes(spec.size)).decode(), Encoding.BASE64
    return "".join(secrets.choice(spec.letters) for _ in range(spec.size)), Encoding.TEXT


class EnsureSecret:
    """An outside effect: the secret of that name, made where it is missing."""

    def __init__(self, keeper: SecretKeeper, caller: Caller, operation_id: str, body: SecretEnsure) -> None:
        self._keeper = keeper
        self._caller = caller
        self._operation_id = operation_id
        self._body = body
        self._id = ids.new_id(ids.SECRET)

    async def _find(self, tx: Transaction) -> tuple[InstanceView, SecretView | None]:
        """Find the instance, and the secret where it is there."""
        operation = await operations.require_lease(tx, self._caller, self._operation_id, self._body.fencing_token)
        refuse_in_preflight(operation, "secrets")
        assert operation.instance_id is not None
        instance = await instance_store.get(tx, operation.instance_id)
        assert instance is not None
        return instance, await store.get_by_name(tx, instance.id, self._body.name)

    async def intend(self, tx: Transaction) -> Secret | None:
        instance, row = await self._find(tx)
        if row is not None and self._body.spec is None:
            return await _to_model(tx, row)
        self._spec = self._wanted(instance)
        if row is not None:
            return await self._same(tx, row)
        await secret_versions.refuse_in_flight(tx)
        if await store.count_of(tx, instance.id) >= MOST_PER_INSTANCE:
            raise Refusal(Code.KEY_LIMIT, f"an app instance has {MOST_PER_INSTANCE} secrets at most")
        await version_store.intend(tx, self._id, 1, instance.project_id)
        return None

    def _wanted(self, instance: InstanceView) -> SecretSpec:
        declared = manifest_of(instance).secret(self._body.name)
        spec = None if declared is None else declared.spec
        given = self._body.spec
        if given is None and spec is None:
            detail = f"the app's manifest declares no secret {self._body.name!r}: say what it is to be"
        elif given is not None and spec is not None and given != spec:
            detail = f"the app's manifest declares the secret {self._body.name!r} otherwise: leave it out here"
        else:
            chosen = given or spec
            assert chosen is not None
            return chosen
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/spec", detail=detail)])

    async def _same(self, tx: Transaction, row: SecretView) -> Secret:
        if row.spec != self._spec:
            raise Refusal(Code.NAME_TAKEN, f"the instance has another kind of secret named {row.name!r}")
        return await _to_model(tx, row)

    async def act(self) -> None:
        await self._keeper.keep(self._id, 1, *make_value(self._spec))

    async def finish(self, tx: Transaction) -> Secret:
        instance, _ = await self._find(tx)
        row = await store.insert(tx, self._id, instance, self._body.name, self._spec)
        if row is None:
            # Another request was faster: its value is the one, ours is of no use.
            await self.abandon(tx)
            present = await store.get_by_name(tx, instance.id, self._body.name)
            if present is None:
                raise Refusal(Code.INVALID_STATE, "the instance is over")
            return await self._same(tx, present)
        await secret_versions.settle(tx, self._id, 1)
        await _changed(tx, row, SecretEvent.CREATED, "create", kind=self._spec.kind)
        return await _changed_model(tx, row.id)

    async def abandon(self, tx: Transaction) -> None:
        await version_store.abandon(tx, self._id, 1)


class RotateSecret:
    """An outside effect: a new version beside the one before it, the versions before that end."""

    def __init__(self, keeper: SecretKeeper, caller: Caller, secret_id: str) -> None:
        self._keeper = keeper
        self._caller = caller
        self._id = secret_id

    async def intend(self, tx: Transaction) -> None:
        row = await _require(tx, self._caller, self._id, Permission.SECRET_ROTATE, lock=True)
        tx.match(row)
        await secret_versions.refuse_in_flight(tx)
        self._spec = row.spec
        self._version = await secret_versions.next_number(tx, self._id)
        await version_store.intend(tx, self._id, self._version, row.project_id)

    async def act(self) -> None:
        await self._keeper.keep(self._id, self._version, *make_value(self._spec))

    async def finish(self, tx: Transaction) -> Secret:
        tx.match(await _require(tx, self._caller, self._id, Permission.SECRET_ROTATE, lock=True))
        await secret_versions.settle(tx, self._id, self._version)
        found = await version_store.list_of(tx, [self._id])
        valid = [version.version for version in found if version.state == StoredState.VALID]
        for version in valid[:-2]:
            await version_store.end(tx, self._id, version)
        row = await store.touch(tx, self._id)
        await _changed(tx, row, SecretEvent.ROTATED, "rotate", version=self._version)
        return await _changed_model(tx, row.id)

    async def abandon(self, tx: Transaction) -> None:
        await version_store.abandon(tx, self._id, self._version)


async def choose_version(
    tx: Transaction, operation: OperationView, version: int | None, *, secret_id: str
) -> SecretVersionRecord:
    """Choose the version to deliver to the holder of an operation's lease, of the same instance only."""
    row = await store.lock(tx, secret_id)
    if row is None or row.instance_id != operation.instance_id:
        raise not_found(NOUN, secret_id)
    return await secret_versions.choose(tx, secret_id, version, f"secret {row.name}")
