"""Checking the audit trail from outside: every hash is computed here, from what the platform shows."""

import base64
from collections import defaultdict
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gpuaas_contract.audit import (
    GENESIS,
    AuditBatch,
    AuditCheckpoint,
    AuditEntry,
    batch_hash,
    checkpoint_message,
)
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import GpuaasError, NotFoundError


class AuditBroken(GpuaasError):  # noqa: N818 - what was found, not what went wrong here
    """The trail is not what was sealed; the message says where."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    entries: int
    batches: int
    checkpoint_covers: bool
    """Whether the signed head is that of the newest batch: false for the second until it is written."""
    public_key: str | None


async def verify_audit(
    client: GpuaasClient, tenant_id: str | None = None, *, require_checkpoint: bool = True
) -> AuditReport:
    """Verify one chain: a tenant's, or the platform's own. Raises AuditBroken on the first thing found."""
    # The checkpoint first: what is sealed while we read comes on top of it, never below.
    try:
        checkpoint = await client.audit.checkpoint(tenant_id)
    except NotFoundError:
        checkpoint = None
    batches = await client.audit.batches(tenant_id).all()
    entries = await client.audit.sealed(tenant_id).all()
    _check_batches(batches, entries)
    if checkpoint is not None:
        _check_checkpoint(checkpoint, batches)
    elif require_checkpoint:
        raise AuditBroken("the chain has no signed checkpoint; a truncated tail would go unnoticed")
    covers = checkpoint is not None and bool(batches) and checkpoint.number == batches[-1].number
    checked = batches[-1].last_position if batches else 0  # what was sealed while we read is the next run's
    return AuditReport(checked, len(batches), covers, checkpoint.public_key if checkpoint else None)


def _check_batches(batches: list[AuditBatch], entries: list[AuditEntry]) -> None:
    by_batch: dict[int, list[AuditEntry]] = defaultdict(list)
    for entry in entries:
        by_batch[entry.batch or 0].append(entry)
    previous, position = GENESIS, 1
    for expected, batch in enumerate(batches, start=1):
        if batch.number != expected:
            raise AuditBroken(f"batch {expected} is missing")
        if batch.first_position != position:
            raise AuditBroken(f"batch {batch.number} begins at {batch.first_position}, not at {position}")
        members = by_batch.pop(batch.number, [])
        wanted = list(range(batch.first_position, batch.last_position + 1))
        if [entry.position for entry in members] != wanted:
            raise AuditBroken(f"batch {batch.number} does not hold the entries {wanted[0]} to {wanted[-1]}, in order")
        if batch_hash(previous, members) != batch.hash:
            raise AuditBroken(f"an entry of batch {batch.number} ({wanted[0]} to {wanted[-1]}) was changed")
        previous, position = batch.hash, batch.last_position + 1
    strays = [number for number in by_batch if number <= len(batches)]
    if strays:
        raise AuditBroken(f"entries name batches that do not exist: {strays}")


def _check_checkpoint(checkpoint: AuditCheckpoint, batches: list[AuditBatch]) -> None:
    message = checkpoint_message(checkpoint.chain, checkpoint.number, checkpoint.last_position, checkpoint.hash)
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(checkpoint.public_key))
    try:
        key.verify(base64.b64decode(checkpoint.signature), message)
    except InvalidSignature:
        raise AuditBroken("the checkpoint's signature is not the platform's") from None
    if len(batches) < checkpoint.number:
        raise AuditBroken(f"the tail was truncated: {checkpoint.number} batches were sealed, {len(batches)} are left")
    if batches[checkpoint.number - 1].hash != checkpoint.hash:
        raise AuditBroken(f"batch {checkpoint.number} is not the one that was signed")
