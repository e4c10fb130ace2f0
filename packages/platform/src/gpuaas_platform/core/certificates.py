"""The certificate that the API shows: checked in words before it is used, and read again when its files change."""

import asyncio
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import structlog
from cryptography import x509

log = structlog.get_logger()
_Stamp = tuple[tuple[int, int, int], ...]


class CertificateError(Exception):
    """The certificate or its key cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    certificate: Path
    key: Path

    def stamp(self) -> _Stamp:
        """A fingerprint that changes when either file is replaced or written."""
        found = [path.stat() for path in (self.certificate, self.key)]
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found)


def load(files: CertificateFiles, names: Sequence[str], now: datetime | None = None) -> ssl.SSLContext:
    """Load a certificate that is valid now and holds one of the names by which clients reach us."""
    leaf = _read_certificate(files.certificate)
    _check_time(files.certificate, leaf, now or datetime.now(UTC))
    if names and not any(covers(leaf, name) for name in names):
        held = ", ".join(str(name) for name in _names_of(leaf)) or "no name at all"
        raise CertificateError(
            f"cannot use the certificate {files.certificate}: it is for {held}, and clients ask for "
            f"{' or '.join(names)}. Have it issued for that name, or choose a name that it holds (GPUAAS_API_NAME)"
        )
    _read(files.key, "key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Asked for a passphrase, OpenSSL would stop and read the terminal.
        context.load_cert_chain(files.certificate, files.key, password=_refuse_passphrase)
    except CertificateError:
        raise CertificateError(f"cannot use the key {files.key}: it has a passphrase. Store it without one") from None
    except ssl.SSLError as error:
        foreign = "MISMATCH" in (error.reason or "")
        reason = "it does not belong to the certificate" if foreign else "it is not a key in PEM format"
        raise CertificateError(f"cannot use the key {files.key} for {files.certificate}: {reason}") from None
    return context


def _refuse_passphrase() -> str:
    raise CertificateError("a passphrase is asked for")


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"cannot read the {what} {path}: {error.strerror}. "
            f"The API's user (id {os.geteuid()}) has to be able to read what GPUAAS_TLS names"
        ) from None


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(_read(path, "certificate"))[0]
    except ValueError:
        raise CertificateError(f"cannot use the certificate {path}: it holds no certificate in PEM format") from None


def _check_time(path: Path, leaf: x509.Certificate, now: datetime) -> None:
    if now >= leaf.not_valid_after_utc:
        ended = f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise CertificateError(f"cannot use the certificate {path}: it expired at {ended}. Renew it")
    if now < leaf.not_valid_before_utc:
        begins = f"{leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise CertificateError(f"cannot use the certificate {path}: it is valid from {begins} on. Is the clock right?")


def _names_of(leaf: x509.Certificate) -> list[str | IPv4Address | IPv6Address]:
    try:
        held = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        # A common name alone is not looked at by any client of today.
        return []
    addresses = [a for a in held.get_values_for_type(x509.IPAddress) if isinstance(a, IPv4Address | IPv6Address)]
    return [*held.get_values_for_type(x509.DNSName), *addresses]


def covers(leaf: x509.Certificate, host: str) -> bool:
    """Whether clients that ask for a host accept the certificate. A `*` stands for one label, the first."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ip_address(name) in _names_of(leaf)
    except ValueError:
        held = [each.lower() for each in _names_of(leaf) if isinstance(each, str)]
    _, dot, parent = name.partition(".")
    return name in held or bool(dot and f"*.{parent}" in held)


class ServedCertificate:
    """The context of a listening socket. Files that changed are used for the connections that come after."""

    def __init__(self, files: CertificateFiles, names: Sequence[str]) -> None:
        self._files = files
        self._names = names
        self._seen: _Stamp | None = None
        self.reload()
        self.context = self._current
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        # A context that has loaded the first half of a new pair cannot serve, so each pair gets one of its own.
        connection.context = self._current

    def reload(self) -> bool:
        """Load the files if they changed, and return whether they are in use now."""
        try:
            stamp = self._files.stamp()
        except OSError:
            stamp = None
        if stamp is not None and stamp == self._seen:
            return False
        self._current = load(self._files, self._names)
        self._seen = stamp
        return True

    async def watch(self, every: float) -> None:
        """Look for ever. Files that cannot be used are named once; the old certificate is shown until they can be."""
        said = ""
        while True:
            await asyncio.sleep(every)
            try:
                if await asyncio.to_thread(self.reload):
                    said = ""
                    log.info("certificate_reloaded", file=str(self._files.certificate))
            except CertificateError as error:
                if said != str(error):
                    said = str(error)
                    log.error("certificate_refused", reason=said)
