"""Names of people on machines."""

import re

import pytest

from gpuaas_platform.access.rules.logins import login_for


@pytest.mark.parametrize(
    ("email", "login"),
    [
        ("ada@example.com", "ada"),
        ("Ada.Lovelace@example.com", "ada-lovelace"),
        ("ada+slices@example.com", "ada-slices"),
        ("root@example.com", "root-10007"),
        ("systemd-network@example.com", "systemd-network-10007"),
        ("gpuaas@example.com", "gpuaas-10007"),
        ("a@example.com", "a-10007"),
        ("42@example.com", "u42"),
        ("root; rm -rf /@example.com", "root-rm-rf"),
        ("../../etc@example.com", "etc"),
        ("ß@example.com", "u-10007"),
        ("x" * 200 + "@example.com", "x" * 24),
    ],
)
def test_a_name_is_safe(email: str, login: str) -> None:
    assert login_for(email, 10_007, taken=False) == login
    for taken in (False, True):
        assert re.fullmatch(r"[a-z][a-z0-9-]{0,30}[a-z0-9]", login_for(email, 10_007, taken=taken))


def test_the_second_of_a_name_has_a_number() -> None:
    assert login_for("ada@example.org", 10_008, taken=True) == "ada-10008"
