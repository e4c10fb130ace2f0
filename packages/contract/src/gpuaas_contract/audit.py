"""The audit trail: who did what, sealed in a hash chain per tenant that anybody who may read it can check.

An entry's hash covers all its fields. A batch's hash covers the hash of the batch before it and the hashes
of its entries in order. The platform signs the newest batch of each chain and keeps that checkpoint outside
the database, so that a cut-off tail is noticed, too.
"""

import hashlib
import json
from enum import StrEnum

from pydantic import AwareDatetime

from gpuaas_contract.base import JsonObject, Page, Resource

PLATFORM_CHAIN = "platform"
"""The chain of what belongs to no tenant; every other chain is named by its tenant's id."""
GENESIS = "0" * 64


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


class AuditPage(Page):
    items: list[AuditEntry]


class AuditBatch(Resource):
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


def entry_hash(entry: AuditEntry) -> str:
    fields = entry.model_dump(mode="json", exclude={"batch"})
    fields["at"] = entry.at.timestamp()
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def batch_hash(previous: str, entries: list[AuditEntry]) -> str:
    hasher = hashlib.sha256(previous.encode())
    for entry in entries:
        hasher.update(entry_hash(entry).encode())
    return hasher.hexdigest()


def checkpoint_message(chain: str, number: int, last_position: int, hash: str) -> bytes:
    return f"gpuaas-audit-checkpoint/1 {chain} {number} {last_position} {hash}".encode()
