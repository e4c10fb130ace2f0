"""Which SSH private keys are taken, and what of them is shown."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpuaas_contract.credentials import KeyOrigin
from gpuaas_contract.problems import Code
from gpuaas_platform.access.rules.ssh_keys import generate_key, read_key
from gpuaas_platform.core.errors import Refusal


def test_a_made_key_can_be_read_back_and_hides_itself() -> None:
    made = generate_key()
    read = read_key(made.private_key)
    assert (read.fingerprint, read.public_key) == (made.fingerprint, made.public_key)
    assert (made.origin, read.origin) == (KeyOrigin.GENERATED, KeyOrigin.UPLOADED)
    assert "PRIVATE" not in repr(made)
    assert "private_key" not in made.facts
    assert generate_key().fingerprint != made.fingerprint


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_every_curve_of_openssh_is_taken(curve: ec.EllipticCurve) -> None:
    key = ec.generate_private_key(curve)
    read = read_key(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode())
    assert read.key_type == f"ecdsa-sha2-nistp{curve.key_size}"


@pytest.mark.parametrize(("bits", "taken"), [(1024, False), (2048, False), (3072, True)])
def test_short_rsa_keys_are_not(bits: int, taken: bool) -> None:
    key = rsa.generate_private_key(65537, bits)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    if taken:
        assert read_key(text).bits == bits
        return
    with pytest.raises(Refusal, match=str(bits)) as refused:
        read_key(text)
    assert (refused.value.code, refused.value.errors[0].pointer) == (Code.KEY_INVALID, "/private_key")


def test_every_cut_of_a_key_is_refused_and_none_is_quoted() -> None:
    text = generate_key().private_key
    lines = text.splitlines()
    for length in range(0, len(text.rstrip()) - 1, 7):
        with pytest.raises(Refusal) as refused:
            read_key(text[:length])
        assert not [line for line in lines[1:-1] if line in refused.value.detail]
