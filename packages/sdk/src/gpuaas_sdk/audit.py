"""Checking the audit trail from outside: every hash is computed here, from what the platform shows."""

import base64
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from gpuaas_contract.audit import (
    GENESIS,
    AuditBatch,
    AuditCheckpoint,
    AuditEntry,
    ExportEnd,
    ExportHeader,
    ExportLine,
    chained_hash,
    checkpoint_message,
    covers_all,
    entry_hash,
)
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import GpuaasError, NotFoundError, ProtocolError


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
        for entry in members:
            _check_cover(entry)
        wanted = list(range(batch.first_position, batch.last_position + 1))
        if [entry.position for entry in members] != wanted:
            raise AuditBroken(f"batch {batch.number} does not hold the entries {wanted[0]} to {wanted[-1]}, in order")
        _check_hash(previous, [_hash_of(entry) for entry in members], batch)
        previous, position = batch.hash, batch.last_position + 1
    strays = [number for number in by_batch if number <= len(batches)]
    if strays:
        raise AuditBroken(f"entries name batches that do not exist: {strays}")


def _check_cover(entry: AuditEntry) -> None:
    if not covers_all(entry):
        raise AuditBroken(f"entry {entry.position} says more than its seal covers: something was added to it")


def _hash_of(entry: AuditEntry) -> str:
    try:
        return entry_hash(entry)
    except ValueError as unknown:
        raise ProtocolError(str(unknown)) from None


def _check_hash(previous: str, hashes: list[str], batch: AuditBatch) -> None:
    if chained_hash(previous, hashes) != batch.hash:
        span = f"{batch.first_position} to {batch.last_position}"
        raise AuditBroken(f"an entry of batch {batch.number} ({span}) was changed")


def _check_signature(checkpoint: AuditCheckpoint) -> None:
    message = checkpoint_message(checkpoint.chain, checkpoint.number, checkpoint.last_position, checkpoint.hash)
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(checkpoint.public_key))
        key.verify(base64.b64decode(checkpoint.signature), message)
    except (InvalidSignature, ValueError):
        raise AuditBroken("the checkpoint's signature is not the platform's") from None


def _check_checkpoint(checkpoint: AuditCheckpoint, batches: list[AuditBatch]) -> None:
    _check_signature(checkpoint)
    if len(batches) < checkpoint.number:
        raise AuditBroken(f"the tail was truncated: {checkpoint.number} batches were sealed, {len(batches)} are left")
    if batches[checkpoint.number - 1].hash != checkpoint.hash:
        raise AuditBroken(f"batch {checkpoint.number} is not the one that was signed")


@dataclass(frozen=True, slots=True)
class ExportReport:
    chain: str
    first_batch: int
    last_batch: int
    entries: int
    omitted: int
    """Entries that the filters left out; their hashes are in the export."""
    signed_up_to: int
    """The batch up to which the platform's signature vouches for this; 0 where it vouches for nothing of it."""
    public_key: str | None


def verify_export(lines: Iterable[str], *, public_key: str | None = None) -> ExportReport:
    """Verify an export without the platform. Raises AuditBroken on the first thing found.

    An export names the key that signed it, and whoever forges one names their own: give `public_key`, as
    `gpuaas audit verify` printed it before, to be sure of that, too."""
    return _ExportCheck(public_key).run(lines)


class _ExportCheck:
    """One pass over the lines, with one batch in memory."""

    def __init__(self, public_key: str | None) -> None:
        self._wanted_key = public_key
        self._header: ExportHeader | None = None
        self._batch: AuditBatch | None = None
        self._hashes: list[str] = []
        self._checkpoint: AuditCheckpoint | None = None
        self._end: ExportEnd | None = None
        self._number, self._position, self._previous = 0, 0, GENESIS
        self._signed_up_to = 0
        self._hash_at: dict[int, str] = {}
        self._counts = {"batches": 0, "entries": 0, "omitted": 0}

    def run(self, lines: Iterable[str]) -> ExportReport:
        for number, text in enumerate(lines, start=1):
            if text.strip():
                self._read(number, text)
        if self._header is None:
            raise AuditBroken("it has no header; is this an export of an audit trail?")
        if self._end is None:
            raise AuditBroken("it was cut off: its last line is missing; export again")
        if self._end.model_dump() != self._counts:
            raise AuditBroken("it does not have as many lines as its last line says")
        self._check_head()
        key = self._checkpoint.public_key if self._checkpoint else None
        return ExportReport(
            self._header.chain,
            self._header.after_batch + 1,
            self._number,
            self._counts["entries"],
            self._counts["omitted"],
            self._signed_up_to,
            key,
        )

    def _read(self, number: int, text: str) -> None:
        try:
            line = ExportLine.model_validate_json(text)
        except ValidationError:
            raise AuditBroken(f"line {number} is not a line of an export") from None
        if self._end is not None:
            raise AuditBroken(f"line {number} comes after the end")
        if (self._header is None) != (line.header is not None):
            raise AuditBroken(f"line {number}: an export begins with its one header")
        if line.header is not None:
            self._begin(line.header)
        elif line.entry is not None:
            _check_cover(line.entry)
            self._member(line.entry.chain, line.entry.position, _hash_of(line.entry), "entries")
        elif line.omitted is not None:
            self._member(self._chain, line.omitted.position, line.omitted.hash, "omitted")
        else:
            self._close()
            self._batch, self._checkpoint, self._end = line.batch, line.checkpoint or self._checkpoint, line.end

    @property
    def _chain(self) -> str:
        return self._header.chain if self._header else ""

    def _begin(self, header: ExportHeader) -> None:
        self._header = header
        if header.after_batch == 0 and (header.previous_hash, header.after_position) != (GENESIS, 0):
            raise AuditBroken("it says that it begins with the chain, and does not")
        self._number, self._position, self._previous = header.after_batch, header.after_position, header.previous_hash
        self._hash_at[self._number] = self._previous

    def _member(self, chain: str, position: int | None, hash: str, kind: str) -> None:
        expected = self._position + len(self._hashes) + 1
        if self._batch is None or chain != self._chain or position != expected:
            raise AuditBroken(f"entry {expected} is missing, or not in its place")
        self._hashes.append(hash)
        self._counts[kind] += 1

    def _close(self) -> None:
        """Check the batch that is whole now."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        if (batch.chain, batch.number, batch.first_position) != (self._chain, self._number + 1, self._position + 1):
            raise AuditBroken(f"batch {self._number + 1} is missing")
        if len(self._hashes) != batch.last_position - self._position:
            raise AuditBroken(f"batch {batch.number} does not hold the entries up to {batch.last_position}")
        _check_hash(self._previous, self._hashes, batch)
        self._number, self._position, self._previous = batch.number, batch.last_position, batch.hash
        self._hash_at[batch.number] = batch.hash
        self._hashes = []
        self._counts["batches"] += 1

    def _check_head(self) -> None:
        checkpoint = self._checkpoint
        if checkpoint is None:
            raise AuditBroken("it has no signed checkpoint; a truncated tail would go unnoticed")
        if self._wanted_key not in (None, checkpoint.public_key):
            raise AuditBroken("it was signed with another key than the one that was given")
        _check_signature(checkpoint)
        if checkpoint.chain != self._chain:
            raise AuditBroken(f"its checkpoint is that of another chain, {checkpoint.chain}")
        if checkpoint.number > self._number:
            raise AuditBroken(
                f"the tail was truncated: batch {checkpoint.number} is signed, {self._number} is the last"
            )
        known = self._hash_at.get(checkpoint.number)
        if known is not None and known != checkpoint.hash:
            raise AuditBroken(f"batch {checkpoint.number} is not the one that was signed")
        self._signed_up_to = checkpoint.number if known is not None else 0
