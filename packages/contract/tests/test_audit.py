"""The hash of an audit entry: each form covers its own fields, and the first form is what it always was."""

import hashlib
import json
from datetime import UTC, datetime

import pytest

from gpuaas_contract.audit import (
    GENESIS,
    NEWEST_FORM,
    AuditEntry,
    AuditOutcome,
    batch_hash,
    chained_hash,
    covers_all,
    entry_hash,
)

OLD = AuditEntry(
    id="aud_1",
    at=datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
    chain="ten_1",
    position=7,
    batch=3,
    principal_id="usr_1",
    action="project.create",
    target="prj_1",
    correlation_id="cor_1",
    fingerprint="f" * 64,
    detail={"ä": [1, None]},
)
NEW = OLD.model_copy(update={"form": NEWEST_FORM, "address": "203.0.113.9", "user_agent": "curl", "service": "tenants"})


def test_an_entry_from_before_has_the_hash_that_it_had() -> None:
    """Written down as the program before computed it: such entries lie sealed in databases."""
    fields = {
        "action": "project.create",
        "at": OLD.at.timestamp(),
        "chain": "ten_1",
        "correlation_id": "cor_1",
        "detail": {"ä": [1, None]},
        "fingerprint": "f" * 64,
        "id": "aud_1",
        "outcome": "succeeded",
        "position": 7,
        "principal_id": "usr_1",
        "project_id": None,
        "target": "prj_1",
    }
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    assert entry_hash(OLD) == hashlib.sha256(canonical).hexdigest()


@pytest.mark.parametrize("field", sorted(AuditEntry.model_fields.keys() - {"batch"}))
def test_a_change_of_any_field_changes_the_hash(field: str) -> None:
    other: dict[str, object] = {
        "at": datetime.now(UTC),
        "position": 8,
        "detail": {},
        "form": 1,
        "outcome": AuditOutcome.DENIED,
    }
    assert entry_hash(NEW.model_copy(update={field: other.get(field, "another")})) != entry_hash(NEW)


def test_an_old_form_does_not_cover_new_fields_and_says_so() -> None:
    assert covers_all(OLD)
    assert covers_all(NEW)
    assert not covers_all(OLD.model_copy(update={"address": "203.0.113.9"}))


def test_an_unknown_form_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="use a newer one"):
        entry_hash(NEW.model_copy(update={"form": 99}))


def test_a_batch_is_hashed_by_the_hashes_of_its_entries() -> None:
    assert batch_hash(GENESIS, [OLD, NEW]) == chained_hash(GENESIS, [entry_hash(OLD), entry_hash(NEW)])
