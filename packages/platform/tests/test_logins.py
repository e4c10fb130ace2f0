"""Names of people on machines."""

import re

import pytest

from gpuaas_platform.access.rules.logins import is_of_people, login_for


@pytest.mark.parametrize(
    ("email", "login"),
    [
        ("ada@example.com", "u-ada"),
        ("Ada.Lovelace@example.com", "u-ada-lovelace"),
        ("ada+slices@example.com", "u-ada-slices"),
        ("root@example.com", "u-root"),
        ("systemd-network@example.com", "u-systemd-network"),
        ("gpuaas@example.com", "u-gpuaas"),
        ("a@example.com", "u-a"),
        ("42@example.com", "u-42"),
        ("root; rm -rf /@example.com", "u-root-rm-rf"),
        ("../../etc@example.com", "u-etc"),
        ("ß@example.com", "u-10007"),
        ("x" * 200 + "@example.com", "u-" + "x" * 24),
    ],
)
def test_a_name_is_safe(email: str, login: str) -> None:
    assert login_for(email, 10_007, taken=False) == login
    for taken in (False, True):
        assert re.fullmatch(r"[a-z][a-z0-9-]{0,30}[a-z0-9]", login_for(email, 10_007, taken=taken))


def test_the_second_of_a_name_has_a_number() -> None:
    assert login_for("ada@example.org", 10_008, taken=True) == "u-ada-10008"


@pytest.mark.parametrize("name", ["root", "mail", "www-data", "postgres", "redis", "systemd-network", "_apt", "u"])
def test_no_name_of_a_package_is_one_of_people(name: str) -> None:
    """Whatever an app installs later: the names of daemons are outside of the namespace of people."""
    assert not is_of_people(name)
    for taken in (False, True):
        assert is_of_people(login_for(f"{name}@example.com", 10_007, taken=taken))
