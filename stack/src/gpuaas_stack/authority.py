"""An authority of the stack's own, and the API's certificate by it: made where there is none, renewed before it ends.

Each key lies in one file with its certificate, so that both are replaced at once and a crash leaves no half of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuaas_stack import users
from gpuaas_stack.errors import StackError

AUTHORITY_DAYS, RENEW_AUTHORITY_DAYS = 3650, 365
CERTIFICATE_DAYS, RENEW_CERTIFICATE_DAYS = 90, 30
# Clocks of other machines may be behind.
EARLIER = timedelta(hours=1)


class Authority:
    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.directory = directory
        self.names = sorted(set(names))
        self.ca_file = directory / "ca.pem"
        """The certificate that clients trust; anybody may read it."""
        self.pair = directory / "server.pem"
        """The API's key and certificate, in one file."""
        self._own = directory / "authority.pem"

    def ensure(self, now: datetime | None = None) -> bool:
        """Make or renew what is missing or about to end. True if there is a new authority, which clients must learn."""
        now = now or datetime.now(UTC)
        users.ensure_dir(self.directory)
        made = not self._own.exists() or self._ends_within(self._own, now, RENEW_AUTHORITY_DAYS)
        if made:
            users.write_private(self._own, _make_authority(now))
        public = _certificate_in(self._own).public_bytes(Encoding.PEM)
        if not self.ca_file.exists() or self.ca_file.read_bytes() != public:
            users.write_private(self.ca_file, public)
        self.ca_file.chmod(0o644)
        self.renew(now)
        return made

    def renew(self, now: datetime | None = None) -> bool:
        """Issue the API's certificate again where a third of its life is left, or where it does not fit any more."""
        now = now or datetime.now(UTC)
        if self._fits(now):
            return False
        users.write_private(self.pair, self._issue(now), users.API)
        return True

    def _fits(self, now: datetime) -> bool:
        authority = _certificate_in(self._own)
        try:
            found = _certificate_in(self.pair)
            found.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001 - it is missing, broken, or not by our authority: a new one mends each
            return False
        if found.not_valid_after_utc - now < timedelta(days=RENEW_CERTIFICATE_DAYS):
            return False
        held = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return held == x509.SubjectAlternativeName(_general_names(self.names))

    def _ends_within(self, path: Path, now: datetime, days: int) -> bool:
        return _certificate_in(path).not_valid_after_utc - now < timedelta(days=days)

    def _issue(self, now: datetime) -> bytes:
        issuer, key = _certificate_in(self._own), ec.generate_private_key(ec.SECP256R1())
        builder = _builder("gpuaas-api", issuer.subject, key, now, CERTIFICATE_DAYS)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(_key_in(self._own).public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(_general_names(self.names)), critical=False)
        builder = builder.add_extension(usage, critical=False).add_extension(by, critical=False)
        return _to_pem(key, builder.sign(_key_in(self._own), hashes.SHA256()))


def _make_authority(now: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own each time: two authorities of one name cannot be told apart by who looks for an issuer.
    name = f"GPUaaS {now:%Y-%m-%d %H:%M:%S}"
    builder = _builder(name, None, key, now, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _to_pem(key, builder.sign(key, hashes.SHA256()))


_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _builder(
    name: str, issuer: x509.Name | None, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer or subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - EARLIER).not_valid_after(now + timedelta(days=days))


def _general_names(names: Sequence[str]) -> list[x509.GeneralName]:
    return [_general_name(name) for name in names]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _to_pem(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bytes:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


def _certificate_in(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except ValueError as error:
        raise _broken(path) from error


def _key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except ValueError as error:
        raise _broken(path) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _broken(path)
    return key


def _broken(path: Path) -> StackError:
    return StackError(
        f"cannot use {path}: it holds no key with a certificate. Restore it, or remove {path.parent} and start again: "
        "a new authority is made, and clients have to be given its ca.pem"
    )
