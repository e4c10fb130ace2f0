"""A password has twelve characters at least, and some variety."""

import pytest
from pydantic import SecretStr, ValidationError

from gpuaas_contract.identity import UserCreate, UserUpdate
from gpuaas_contract.passwords import LEAST, MOST, check_password
from gpuaas_contract.sessions import PasswordChange

REFUSED = {
    "": "at least 12",
    "a" * 11: "at least 12",
    "short but 11": None,
    " " * LEAST: "white space",
    "\t \n\u00a0\u2003 " * 3: "white space",
    "a" * LEAST: "one character repeated",
    "a a a a a a a": "one character repeated",
    "\u200b" * 20: "one character repeated",
    "a" * (MOST + 1): "at most",
    "aaaaaaaaaaab": None,
    "correct horse battery staple": None,
    "ä" * 11 + "ö": None,
}


@pytest.mark.parametrize("password", REFUSED)
def test_the_rule(password: str) -> None:
    wrong = REFUSED[password]
    if wrong is None:
        assert check_password(password) == password
        return
    with pytest.raises(ValueError, match=wrong):
        check_password(password)


@pytest.mark.parametrize("password", [password for password, wrong in REFUSED.items() if wrong])
def test_every_request_that_sets_a_password_has_the_rule_and_never_quotes_it(password: str) -> None:
    secret = SecretStr(password)
    for make in (
        lambda: UserCreate(email="a@example.com", password=secret),
        lambda: UserUpdate(password=secret),
        lambda: PasswordChange(current_password=SecretStr("old"), new_password=secret),
    ):
        with pytest.raises(ValidationError) as refused:
            make()
        assert not password or password not in str(refused.value)


def test_the_present_password_has_no_rule() -> None:
    PasswordChange(current_password=SecretStr("aaaa"), new_password=SecretStr("correct horse battery staple"))
