"""Deliveries of secrets to the holder of a lease: wrapped by OpenBao, unwrapped once, through the platform.

The value never passes through here before it is unwrapped, and is kept nowhere then."""

import hashlib
from collections.abc import Awaitable, Callable

from gpuaas_contract import ids
from gpuaas_contract.audit import AuditOutcome
from gpuaas_contract.credentials import VersionState
from gpuaas_contract.problems import Code, FieldError
from gpuaas_contract.secret_deliveries import (
    WRAP_SECONDS,
    SecretDelivery,
    SecretDeliveryRequest,
    UnwrappedSecret,
    UnwrapRequest,
)
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.instances.service.preflights import refuse_in_preflight
from gpuaas_platform.operations.records import OperationView
from gpuaas_platform.operations.service import operations
from gpuaas_platform.secrets.records import DeliveryState, SecretDeliveryView
from gpuaas_platform.secrets.storage import deliveries as store
from gpuaas_platform.vault.records import SecretVersionRecord
from gpuaas_platform.vault.service.versions import SecretKeeper, path_of

Choose = Callable[[Transaction, OperationView, int | None], Awaitable[SecretVersionRecord]]
"""The version to deliver, where the operation may have it."""


class Deliver:
    """An outside effect: a wrapping token for the holder of a live lease."""

    def __init__(self, keeper: SecretKeeper, caller: Caller, body: SecretDeliveryRequest, choose: Choose) -> None:
        self._keeper = keeper
        self._caller = caller
        self._body = body
        self._choose = choose
        self._id = ids.new_id(ids.SECRET_DELIVERY)
        self._token = ""

    async def _check(self, tx: Transaction, number: int | None) -> tuple[OperationView, SecretVersionRecord]:
        operation = await operations.require_lease(tx, self._caller, self._body.operation_id, self._body.fencing_token)
        refuse_in_preflight(operation, "secrets")
        return operation, await self._choose(tx, operation, number)

    async def intend(self, tx: Transaction) -> None:
        _, version = await self._check(tx, self._body.version)
        self._owner_id, self._version = version.owner_id, version.version
        lease = self._body.fencing_token
        if await store.was_used(tx, self._owner_id, self._version, lease):
            raise Refusal(
                Code.ALREADY_DELIVERED,
                f"version {self._version} of {self._owner_id} was unwrapped under this lease already; "
                "claim the operation again to get it once more",
            )
        await store.void_unused(tx, self._owner_id, self._version, lease)
        await store.insert(tx, self._id, self._owner_id, self._version, self._body.operation_id, lease)

    async def act(self) -> None:
        token = await self._keeper.openbao.wrap_secret(path_of(self._owner_id, self._version), WRAP_SECONDS)
        if token is None:
            detail = f"the secrets server has lost version {self._version} of {self._owner_id}: rotate it"
            raise Refusal(Code.INVALID_STATE, detail)
        self._token = token

    async def finish(self, tx: Transaction) -> SecretDelivery:
        operation, _ = await self._check(tx, self._version)
        row = await store.set_ready(tx, self._id, _hash(self._token), WRAP_SECONDS)
        if row is None:
            raise Refusal(Code.INVALID_STATE, "the same lease asked for it again at the same moment")
        detail = {"delivery": self._id, "version": self._version, "operation": operation.id}
        await tx.audit("secret.deliver", self._owner_id, project_id=operation.project_id, detail=detail)
        return to_wire(SecretDelivery, row, wrapping_token=self._token)

    async def abandon(self, tx: Transaction) -> None:
        await store.set_state(tx, self._id, DeliveryState.VOID, expected=DeliveryState.WRAPPING)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def unwrap(
    keeper: SecretKeeper, caller: Caller, correlation_id: str, delivery_id: str, body: UnwrapRequest
) -> UnwrappedSecret:
    token = body.wrapping_token.get_secret_value()
    try:
        async with keeper.database.transaction(caller.id, correlation_id) as tx:
            row = await _take(tx, caller, delivery_id, token)
    except Refusal as refusal:
        if not refusal.denied and refusal.code != Code.NOT_FOUND:
            await _audit_refusal(keeper, caller, correlation_id, delivery_id, refusal)
        raise
    try:
        document = await keeper.openbao.unwrap_secret(token)
        if document is None:
            raise Refusal(Code.DELIVERY_EXPIRED, "the wrapping token is over; ask for another delivery")
    except Refusal as refusal:
        # It said no, or nothing: where it did get the request, it will refuse the next one by itself.
        async with keeper.database.transaction(caller.id, correlation_id) as tx:
            await store.set_state(tx, delivery_id, DeliveryState.READY, expected=DeliveryState.USED)
        await _audit_refusal(keeper, caller, correlation_id, delivery_id, refusal)
        raise
    return UnwrappedSecret(owner_id=row.owner_id, version=row.version, **document)


async def _take(tx: Transaction, caller: Caller, delivery_id: str, token: str) -> SecretDeliveryView:
    """Take it for used, and say so in the audit trail, before anything is handed out."""
    found = await store.get(tx, delivery_id)
    if found is None:
        raise not_found("secret delivery", delivery_id)
    scope = Scope(tenant_id=found.tenant_id, project_id=found.project_id, app_slug=found.app_slug)
    caller.require(Permission.OPERATION_WORK, scope, "secret delivery", delivery_id)
    await operations.require_lease(tx, caller, found.operation_id, found.fencing_token)
    row = await store.lock(tx, delivery_id)
    assert row is not None
    if row.token_hash != _hash(token):
        wrong = "this is not the wrapping token of this delivery"
        errors = [FieldError(pointer="/wrapping_token", detail=wrong)]
        raise Refusal(Code.WRAPPING_TOKEN_INVALID, wrong, errors=errors)
    if row.state == DeliveryState.USED:
        raise Refusal(Code.DELIVERY_USED, "this wrapping token was used before, and works once")
    if row.state != DeliveryState.READY or row.expired:
        raise Refusal(Code.DELIVERY_EXPIRED, "this wrapping token is over; ask for another delivery")
    if row.version_state != VersionState.VALID:
        raise Refusal(Code.INVALID_STATE, f"version {row.version} of {row.owner_id} has ended")
    await store.set_state(tx, delivery_id, DeliveryState.USED, expected=DeliveryState.READY)
    detail = {"delivery": delivery_id, "version": row.version, "operation": row.operation_id}
    await tx.audit("secret.unwrap", row.owner_id, project_id=row.project_id, detail=detail)
    return row


async def _audit_refusal(
    keeper: SecretKeeper, caller: Caller, correlation_id: str, delivery_id: str, refusal: Refusal
) -> None:
    async with keeper.database.transaction(caller.id, correlation_id) as tx:
        row = await store.get(tx, delivery_id)
        assert row is not None
        detail = {"delivery": delivery_id, "version": row.version, "reason": refusal.code}
        await tx.audit(
            "secret.unwrap",
            row.owner_id,
            project_id=row.project_id,
            outcome=AuditOutcome.DENIED,
            detail=detail,
        )
