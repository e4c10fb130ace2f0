"""Passwords: an unknown e-mail costs as much as a known one."""

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import VerifyMismatchError

from gpuaas_platform.accounts.service import passwords


def test_nobodys_hash_costs_what_a_real_one_costs_and_is_nobodys() -> None:
    hasher = PasswordHasher()
    assert extract_parameters(passwords.nobodys_hash()) == extract_parameters(hasher.hash("a password"))
    # A mismatch, not an invalid hash: the whole work was done to find that out.
    with pytest.raises(VerifyMismatchError):
        hasher.verify(passwords.nobodys_hash(), "")
