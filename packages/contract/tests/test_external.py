"""Where an external machine may be said to be, and which lines are a host key."""

import base64
import struct

import pytest
from pydantic import ValidationError

from gpuaas_contract.allocations import Shape
from gpuaas_contract.external import check_address, check_host_key


def key(kind: str) -> str:
    return base64.b64encode(struct.pack(">I", len(kind)) + kind.encode() + b"\0\0\0\x01k").decode()


NO_NAMES = ["", ".", "a..b", "-a", "a-", "a_b", "a b", "a\n", "a,b", "*.example", "root@lab", "lab:22"]
NO_ADDRESSES = ["1.2.3.4.5", "256.1.1.1", "::", "224.0.0.1", "fe80::1%eth0", "[::1]"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("2001:DB8::0:7", "2001:db8::7"),
        ("lab", "lab"),
        ("gpu-1.lab.example.", "gpu-1.lab.example."),
        ("3com.example", "3com.example"),
    ],
)
def test_addresses_and_names(given: str, kept: str) -> None:
    assert check_address(given) == kept


@pytest.mark.parametrize(
    "given",
    [*NO_NAMES, *NO_ADDRESSES, "lab;id", "x" * 64, "é.example"],
)
def test_nothing_else_is_an_address(given: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        check_address(given)


def test_one_key_without_its_comment() -> None:
    line = f"ssh-ed25519 {key('ssh-ed25519')}"
    assert check_host_key(f"{line} root@lab") == line
    for bad in (
        f"lab {line}",
        f"ssh-rsa {key('ssh-ed25519')}",
        f"ssh-ed25519 {key('ssh-ed25519')[:-2]}",
        "ssh-ed25519",
    ):
        with pytest.raises(ValueError, match="key"):
            check_host_key(bad)


def test_the_details_belong_to_the_kind() -> None:
    external = {
        "address": "lab",
        "host_key": f"ssh-ed25519 {key('ssh-ed25519')}",
        "credential_id": "crd_01m7gts9153bz3py7rd3350de3",
    }
    shape = Shape.model_validate({"kind": "external", "external": external})
    assert shape.external is not None
    assert (shape.external.port, shape.external.login) == (22, "root")
    for wrong in ({"kind": "external"}, {"kind": "host", "external": external}, {"external": external}):
        with pytest.raises(ValidationError, match="external"):
            Shape.model_validate(wrong)
    with pytest.raises(ValidationError, match="extra"):
        Shape.model_validate({"kind": "external", "external": {**external, "password": "x"}})
