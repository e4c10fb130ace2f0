"""The limits of run-time secrets."""

import pytest
from pydantic import ValidationError

from gpuaas_contract.secret_deliveries import UnwrappedSecret
from gpuaas_contract.secrets import SecretSpec


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "bytes"},
        {"kind": "bytes", "size": 16},
        {"kind": "password", "size": 11},
        {"kind": "password", "size": 64, "alphabet": "01"},
    ],
)
def test_strong_enough(spec: dict[str, object]) -> None:
    SecretSpec.model_validate(spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "bytes", "size": 15},
        {"kind": "bytes", "alphabet": "abc"},
        {"kind": "password", "size": 10},
        {"kind": "password", "size": 63, "alphabet": "01"},
        {"kind": "password", "alphabet": "abca"},
        {"kind": "password", "alphabet": "a\n"},
        {"kind": "password", "alphabet": "äb"},
    ],
)
def test_too_weak_or_meaningless(spec: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SecretSpec.model_validate(spec)


def test_a_value_does_not_show_itself() -> None:
    answer = UnwrappedSecret.model_validate({"owner_id": "sec_1", "version": 1, "encoding": "text", "value": "hush"})
    assert "hush" not in f"{answer} {answer!r}"
