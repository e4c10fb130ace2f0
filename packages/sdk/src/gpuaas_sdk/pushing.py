"""Support for programs that push files for people: the key from its file, and the progress."""

import sys
from collections.abc import Callable
from pathlib import Path

UPLOADS = Path(".cache") / "gpuaas" / "uploads"
"""Below the home directory: where uploads were, so that the same command goes on after an interruption."""
MAKE_A_KEY = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem"


class UnusableKeyError(Exception):
    """The file holds no key that can sign, or not with this password."""


def uploads_directory() -> Path:
    return Path.home() / UPLOADS


def needs_password(path: Path) -> bool:
    try:
        return "ENCRYPTED" in path.read_text()
    except (OSError, ValueError) as error:
        raise UnusableKeyError(f"{path} is not a signing key: {error}") from None


def read_signing_key(path: Path, password: str | None = None) -> str:
    """The private key in the file, as PEM without a password; checked before anything is sent."""
    from gpuaas_sdk.signing import read_private_key, to_pem

    try:
        pem = path.read_text()
        key = read_private_key(pem, password)
    except (OSError, ValueError) as error:
        raise UnusableKeyError(f"{path} is not a signing key: {error}") from None
    return pem if password is None else to_pem(key)


def show_progress(name: str, size: int) -> Callable[[int], None]:
    """On a terminal, the share that was sent; elsewhere, a line where it goes on and one for each quarter."""
    is_terminal, total = sys.stderr.isatty(), size or 1
    told = -1

    def show(sent: int) -> None:
        nonlocal told
        if is_terminal:
            shown = f"{100 * sent // total} % of {size / 1e6:.1f} MB"
            print(f"\r\x1b[K  {name} {shown}", end="", file=sys.stderr, flush=True)
            return
        quarter = 4 * sent // total
        if told < 0 and sent == size:
            print(f"  {name} is in the registry already", file=sys.stderr, flush=True)
        elif told < 0 and sent:
            print(f"  {name} goes on after {sent} of {size} bytes", file=sys.stderr, flush=True)
        elif quarter > max(told, 0):
            print(f"  {name} {25 * quarter} %", file=sys.stderr, flush=True)
        told = max(told, quarter)

    return show


def end_progress(line: str) -> None:
    """In the place of what `show_progress` shows on a terminal."""
    begin = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{begin}  {line}", file=sys.stderr, flush=True)
