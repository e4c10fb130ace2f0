"""Teardown receipts: written with the end of an instance, signed afterwards, published with the keys that signed them.

OpenBao is asked outside of every transaction. A receipt without a signature is an intent; any process signs it."""

import asyncio
import base64
import time
from datetime import UTC, datetime

import structlog

from gpuaas_contract.problems import Code
from gpuaas_contract.receipts import (
    ALGORITHM,
    ReceiptKey,
    ReceiptKeys,
    ReceiptSignature,
    ReceiptState,
    SignedReceipt,
    canonical_bytes,
    digest,
    encode_key,
    key_id_of,
)
from gpuaas_platform.audit.service import AuditService
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.openbao import KeyVersion, OpenBao
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.rules.signing_keys import in_order, is_due
from gpuaas_platform.instances.service.instances import require_instance, require_member
from gpuaas_platform.operations.records import ReceiptRecord, UnsignedReceipt
from gpuaas_platform.operations.rules.receipts import compose
from gpuaas_platform.operations.storage import operations as operation_store
from gpuaas_platform.operations.storage import receipts as store

log = structlog.get_logger()
FRESH_SECONDS = 5
"""Whoever asks for the keys, OpenBao is asked once in this time."""


async def issue(tx: Transaction, instance_id: str, operation_id: str, *, written_off: str | None = None) -> None:
    """Write the receipt of an instance that ends in this transaction, or of a member of it that is written off. The
    audit trail keeps its digest."""
    owner = await store.get_owner(tx, instance_id)
    ended = owner.ended_at is not None
    if not ended and written_off is None:
        return
    operation = await operation_store.get(tx, operation_id)
    assert operation is not None
    members = await store.list_members(tx, instance_id, written_off)
    machines = sorted({member.allocation_id for member in members})
    if ended:
        checks = await store.list_platform_checks(tx, instance_id, machines, operation.created_at)
    else:
        checks = await store.list_machine_checks(tx, machines, operation.created_at)
    document = compose(owner, operation, members, checks, datetime.now(UTC))
    id = written_off or instance_id
    if await store.insert(tx, id, document):
        detail = {"digest": digest(canonical_bytes(document).decode()), "verdict": document["verdict"]}
        await tx.audit(store.ISSUED, id, project_id=owner.project_id, detail=detail)


async def get_receipt(tx: Transaction, caller: Caller, instance_id: str) -> SignedReceipt:
    instance = await require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    row = await store.get(tx, instance_id)
    if row is None:
        why = (
            "it has not ended: a receipt is issued when it is decommissioned or written off"
            if instance.ended_at is None
            else "it ended before this platform signed receipts; the result of its decommission is unsigned"
        )
        raise Refusal(Code.INVALID_STATE, f"app instance {instance_id} has no signed receipt: {why}")
    return _shown(row, instance_id)


async def get_member_receipt(tx: Transaction, caller: Caller, member_id: str) -> SignedReceipt:
    member = await require_member(tx, caller, member_id, Permission.INSTANCE_READ)
    row = await store.get(tx, member_id)
    if row is None:
        why = (
            "it was written off before this platform issued receipts for that, or together with its instance, whose "
            "receipt names it"
            if member.unverified is not None
            else "only one that was written off has one; the others are in the receipt of their instance"
        )
        raise Refusal(Code.INVALID_STATE, f"member {member_id} has no receipt of its own: {why}")
    return _shown(row, member.instance_id)


def _shown(row: ReceiptRecord, instance_id: str) -> SignedReceipt:
    if row.signature is None or row.key_id is None:
        return SignedReceipt(instance_id=instance_id, state=ReceiptState.PENDING, receipt=row.document)
    signature = ReceiptSignature(algorithm=ALGORITHM, key_id=row.key_id, value=row.signature)
    return SignedReceipt(instance_id=instance_id, state=ReceiptState.SIGNED, receipt=row.document, signature=signature)


class ReceiptSigner:
    def __init__(self, database: Database, openbao: OpenBao, audit: AuditService, most_days: float) -> None:
        self._database = database
        self._openbao = openbao
        self._audit = audit
        self._most_days = most_days
        self._versions: list[KeyVersion] = []
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        await self._openbao.ensure_receipt_key()
        await self._fresh_versions()

    async def keys(self) -> ReceiptKeys:
        async with self._reading:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                await self._fresh_versions()
        return ReceiptKeys(
            items=[
                ReceiptKey(
                    key_id=key_id_of(key.public_key),
                    version=key.version,
                    algorithm=ALGORITHM,
                    public_key=encode_key(key.public_key),
                    created_at=key.created_at,
                )
                for key in self._versions
            ]
        )

    async def _fresh_versions(self) -> list[KeyVersion]:
        self._versions = in_order(await self._openbao.receipt_key_versions())
        self._read_at = time.monotonic()
        return self._versions

    async def sign_pending(self) -> int:
        """Sign those whose audit entry is below a checkpoint, which the receipt then names."""
        async with self._database.system_transaction() as tx:
            rows = await store.list_to_sign(tx)
        if not rows:
            return 0
        key = (await self._fresh_versions())[-1]
        signed = 0
        for row in rows:
            try:
                signed += await self._sign(row, key)
            except Exception:
                # One that cannot be signed must not hold up the others.
                log.exception("receipt_not_signed", subject=row.subject_id)
        return signed

    async def _sign(self, row: UnsignedReceipt, key: KeyVersion) -> bool:
        checkpoint = await self._audit.head_of(row.chain)
        if checkpoint is None or checkpoint.number < row.batch:
            return False
        key_id = key_id_of(key.public_key)
        document = row.document | {
            "audit": {
                "chain": row.chain,
                "entry_id": row.entry_id,
                "position": row.position,
                "batch": row.batch,
                "checkpoint": checkpoint.model_dump(mode="json"),
            },
            "signed_by": {"algorithm": ALGORITHM, "key_id": key_id, "key_version": key.version},
        }
        signature = await self._openbao.sign_receipt(canonical_bytes(document), key.version)
        async with self._database.system_transaction() as tx:
            value = base64.b64encode(signature).decode()
            return await store.finish(tx, row.subject_id, document, key_id, value)

    async def rotate_if_due(self) -> None:
        if not is_due(await self._fresh_versions(), datetime.now(UTC), self._most_days):
            return
        async with self._database.exclusively("receipt key"):
            # Another process may have been faster.
            if not is_due(await self._fresh_versions(), datetime.now(UTC), self._most_days):
                return
            await self._openbao.rotate_receipt_key()
        newest = (await self._fresh_versions())[-1]
        async with self._database.system_transaction() as tx:
            await tx.audit("receipt_key.rotate", f"receipt_key/{newest.version}")
