"""The audit trail: who did what, sealed in a hash chain per tenant that anybody who may read it can check.

An entry's hash covers all fields of its form; entries keep the form in which they were sealed. A batch's hash
covers the hash of the batch before it and the hashes of its entries in order. The platform signs the newest batch of
each chain and keeps that checkpoint outside the database, so that a cut-off tail is noticed, too.
"""

import hashlib
import json
from enum import StrEnum

from pydantic import AwareDatetime

from gpuaas_contract.base import JsonObject, Page, Resource

PLATFORM_CHAIN = "platform"
"""The chain of what belongs to no tenant; every other chain is named by its tenant's id."""
GENESIS = "0" * 64
NEWEST_FORM = 2


class AuditOutcome(StrEnum):
    SUCCEEDED = "succeeded"
    DENIED = "denied"


class AuditEntry(Resource):
    id: str
    at: AwareDatetime
    chain: str
    position: int | None = None
    """Its place in the chain, from 1 on; absent for the moment until it is sealed."""
    batch: int | None = None
    principal_id: str
    action: str
    target: str
    outcome: AuditOutcome = AuditOutcome.SUCCEEDED
    project_id: str | None = None
    correlation_id: str
    fingerprint: str = ""
    """Of the request's method, path, query and body, with a key of the platform: the same for the same request."""
    detail: JsonObject = {}
    address: str = ""
    """Where the request came from; empty for what the platform did by itself, and in entries of form 1."""
    user_agent: str = ""
    """The program that asked, in its own words, shortened."""
    service: str = ""
    """The part of the API that was asked, for example `sessions`; `platform` for what it did by itself."""
    form: int = 1
    """Which fields the entry's hash covers: 1 is from before `address`, `user_agent` and `service`."""


class AuditPage(Page):
    items: list[AuditEntry]


class AuditBatch(Resource):
    """A sealed part of a chain."""

    chain: str
    number: int
    first_position: int
    last_position: int
    hash: str


class AuditBatchPage(Page):
    items: list[AuditBatch]


class AuditCheckpoint(Resource):
    chain: str
    number: int
    last_position: int
    hash: str
    key_version: str
    signature: str
    """Ed25519 over `checkpoint_message`, base64."""
    public_key: str
    """Raw Ed25519 public key, base64: of the platform's own signing key."""


# An export is lines of JSON, each an ExportLine: a header; every batch, with its entries behind it in their order; the
# checkpoint; an end. Of entries that the filters leave out there is the hash, so that the chain can still be checked.
EXPORT_MEDIA_TYPE = "application/x-ndjson"


class ExportHeader(Resource):
    chain: str
    after_batch: int = 0
    """The export begins behind this batch; 0 is the beginning of the chain."""
    after_position: int = 0
    previous_hash: str = GENESIS
    """Of the batch that it begins behind."""
    exported_at: AwareDatetime
    filters: JsonObject = {}


class OmittedEntry(Resource):
    position: int
    hash: str


class ExportEnd(Resource):
    """The last line: an export without it was cut off."""

    batches: int
    entries: int
    omitted: int


class ExportLine(Resource):
    """One of these."""

    header: ExportHeader | None = None
    batch: AuditBatch | None = None
    entry: AuditEntry | None = None
    omitted: OmittedEntry | None = None
    checkpoint: AuditCheckpoint | None = None
    end: ExportEnd | None = None


_FORM_1 = {
    *("id", "at", "chain", "position", "principal_id", "action", "target", "outcome", "project_id", "correlation_id"),
    *("fingerprint", "detail"),
}
_FORMS = {1: _FORM_1, NEWEST_FORM: {*_FORM_1, "address", "user_agent", "service", "form"}}


def covers_all(entry: AuditEntry) -> bool:
    """Whether the hash of an entry covers everything that it says."""
    return entry.form > 1 or not (entry.address or entry.user_agent or entry.service)


def entry_hash(entry: AuditEntry) -> str:
    if entry.form not in _FORMS:
        raise ValueError(
            f"entry {entry.id} has the form {entry.form}, which this version does not know; use a newer one"
        )
    fields = entry.model_dump(mode="json", include=_FORMS[entry.form])
    fields["at"] = entry.at.timestamp()
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def batch_hash(previous: str, entries: list[AuditEntry]) -> str:
    return chained_hash(previous, [entry_hash(entry) for entry in entries])


def chained_hash(previous: str, entry_hashes: list[str]) -> str:
    """Hash a batch by the hashes of its entries: enough where some entries themselves are left out."""
    return hashlib.sha256("".join([previous, *entry_hashes]).encode()).hexdigest()


def checkpoint_message(chain: str, number: int, last_position: int, hash: str) -> bytes:
    return f"gpuaas-audit-checkpoint/1 {chain} {number} {last_position} {hash}".encode()
