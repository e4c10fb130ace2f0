"""Trust in the platform's certificate: whom a client believes, and what is wrong, in words, where it does not."""

import functools
import os
import ssl
from ipaddress import ip_address
from pathlib import Path

CA_FILE_SETTING = "GPUAAS_CA_FILE"
"""A PEM file with authorities that clients trust beside those of the machine."""

_EXPIRED, _NOT_YET, _OTHER_NAME = {10}, {9}, {62, 64}
_UNKNOWN_AUTHORITY = {18, 19, 20, 21}
"""OpenSSL's numbers: X509_V_ERR_…"""


class TrustError(Exception):
    """The file of trusted authorities cannot be used; the message says why and what to do."""


def ca_file_of(given: str | Path | None) -> Path | None:
    """Choose the file of authorities: the given one, else that of the environment."""
    chosen = str(given or os.environ.get(CA_FILE_SETTING) or "")
    return Path(chosen).expanduser().absolute() if chosen else None


def client_context(url: str, ca_file: str | Path | None = None) -> ssl.SSLContext:
    """Make the context for connections to `url`: the machine's authorities, and those in `ca_file`."""
    if not url.lower().startswith(("https:", "wss:")):
        # Nobody is asked for a certificate there, and to load all authorities takes longer than most requests.
        return _without_trust()
    path = ca_file_of(ca_file)
    if path is None:
        return _trusting(None, 0)
    try:
        # Replaced meanwhile by a new authority: loaded again by whoever connects next.
        return _trusting(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise TrustError(f"cannot read the authorities in {path}: {error.strerror}. {_ADVICE}") from None
    except ValueError as error:
        raise TrustError(f"cannot use the authorities in {str(path)[:200]!r}: {error}. {_ADVICE}") from None


_ADVICE = f"Give a PEM file that you can read, with --ca-file or {CA_FILE_SETTING}"


@functools.cache
def _without_trust() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@functools.lru_cache(maxsize=8)
def _trusting(path: Path | None, changed: int) -> ssl.SSLContext:
    context = ssl.create_default_context()
    found = ssl.get_default_verify_paths()
    if found.cafile is None and found.capath is None:
        # A Python that brings its own OpenSSL knows no authorities of the machine.
        try:
            import certifi
        except ImportError:
            pass
        else:
            context.load_verify_locations(certifi.where())
    if path is not None:
        try:
            context.load_verify_locations(cafile=str(path))
        except ssl.SSLError:
            raise ValueError("it holds no certificate in PEM format") from None
    return context


def explain(error: BaseException) -> str | None:
    """Say what is wrong with the other side's certificate, and what to do; None where the error is no such one."""
    found = _ssl_error_of(error)
    if found is None:
        return None
    if isinstance(found, ssl.SSLCertVerificationError):
        return _explain_certificate(found)
    # Errors that Python makes by itself have none of OpenSSL's attributes.
    if getattr(found, "reason", None) in {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG"}:
        return "it does not speak TLS. Its address may have to begin with http://"
    return None


def _ssl_error_of(error: BaseException) -> ssl.SSLError | None:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, ssl.SSLError):
            return current
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return None


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    code, message = getattr(error, "verify_code", 0), getattr(error, "verify_message", str(error))
    if code in _EXPIRED:
        return "its certificate has expired. Whoever runs the platform has to renew it; nothing was sent"
    if code in _NOT_YET:
        return "its certificate is not valid yet. Compare the clocks of both machines"
    if code in _OTHER_NAME:
        return (
            f"its certificate is for another name ({message.rstrip('.')}). "
            "Use an address that the certificate names, or have it issued for this one as well"
        )
    if code in _UNKNOWN_AUTHORITY:
        return (
            "its certificate is of an authority that is not trusted here. Get the authority's certificate from "
            f"whoever runs the platform, and name it with --ca-file or {CA_FILE_SETTING}"
        )
    return f"its certificate is refused: {message}"


def parse_certificate_pair(value: str) -> tuple[Path, Path]:
    """Read `/path/cert.pem:/path/key.pem`, as GPUAAS_TLS names a certificate and its key."""
    parts = value.split(":")
    if len(parts) != 2 or not all(part.startswith("/") and "\0" not in part for part in parts):
        raise ValueError(
            f"GPUAAS_TLS is {value[:200]!r}: write off, embedded, or the whole paths of a certificate and of its key, "
            "as /path/cert.pem:/path/key.pem"
        )
    return Path(parts[0]), Path(parts[1])


def is_loopback(host: str) -> bool:
    """Whether a host name or address is the machine itself, whatever its resolver says."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
