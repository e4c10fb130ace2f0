"""SSH keys as people bring them."""

import base64
import subprocess
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from gpuaas_sdk.secret_value import SecretValue


def openssh(key: PrivateKeyTypes) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


def keygen(kind: str, *words: str, passphrase: str = "") -> str:
    """As OpenSSH itself makes them."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "key"
        command = ["ssh-keygen", "-q", "-t", kind, *words, "-N", passphrase, "-C", "ada@home", "-f", str(file)]
        subprocess.run(command, check=True)
        return file.read_text()


def of_unknown_kind(key: str) -> str:
    """An ed25519 key in OpenSSH form that says it is something else."""
    first, *lines, last = key.strip().splitlines()
    content = base64.b64decode("".join(lines)).replace(b"ssh-ed25519", b"ssh-unknown")
    return "\n".join([first, base64.b64encode(content).decode(), last, ""])


def public_of(value: SecretValue) -> str:
    key = load_ssh_private_key(value.reveal(), password=None)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
