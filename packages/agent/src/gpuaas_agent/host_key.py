"""The SSH identity of a machine: made on the host, written into the slice, kept nowhere else."""

from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gpuaas_agent.errors import PermanentError


@dataclass(frozen=True)
class HostKey:
    private: str
    """In OpenSSH's own format."""
    public: str


def make_host_key(hostname: str) -> HostKey:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(private=private.decode(), public=f"{public.decode()} {hostname}")


def check_certificate(certificate: str, key: HostKey) -> None:
    """Refuse a certificate for another key: sshd would start with it all the same, and nobody would trust the host."""
    try:
        found = serialization.load_ssh_public_identity(certificate.strip().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PermanentError(f"the platform's host certificate cannot be read: {error}") from error
    if not isinstance(found, serialization.SSHCertificate) or found.type is not serialization.SSHCertificateType.HOST:
        raise PermanentError("the platform's answer is not a host certificate")
    own = serialization.load_ssh_public_key(key.public.encode())
    certified = found.public_key()
    assert isinstance(own, Ed25519PublicKey)
    if not isinstance(certified, Ed25519PublicKey) or certified != own:
        raise PermanentError("the platform's host certificate is for another key")
