"""Named contexts in a file that only its owner can read."""

import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuaas_sdk.profile.errors import ProfileError, Wrong

DEFAULT_CONTEXT = "default"
TURN_SECONDS = 60
"""Longer than a platform that is away keeps the program that renews a token."""
RETRY_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Context:
    api_url: str
    email: str | None = None
    token: str | None = field(default=None, repr=False)
    token_expires_at: float | None = None
    refresh_token: str | None = field(default=None, repr=False)
    in_keyring: bool | None = None
    """The tokens lie in the keyring of the desktop, not in this file."""
    service_account_file: str | None = None
    project: str | None = None
    ca_file: str | None = None
    """Authorities that are trusted for this platform, beside those of the machine."""


@dataclass(frozen=True, kw_only=True)
class Config:
    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict)

    def with_context(self, name: str, context: Context, *, current: bool = True) -> "Config":
        return replace(self, current=name if current else self.current, contexts={**self.contexts, name: context})


def path() -> Path:
    if given := os.environ.get("GPUAAS_CONFIG"):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "gpuaas" / "config.yaml"


def load() -> Config:
    file = path()
    try:
        text = file.read_text()
    except FileNotFoundError:
        return Config()
    # What we wrote ourselves is JSON, which is YAML too, and quicker to read than by the YAML library.
    with suppress(ValueError):
        return _parse(file, json.loads(text))
    import yaml

    try:
        return _parse(file, yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise _unreadable(file, error) from None


def _parse(file: Path, content: Any) -> Config:
    content = content or {}
    try:
        contexts = {name: Context(**fields) for name, fields in (content.get("contexts") or {}).items()}
        return Config(current=content.get("current_context"), contexts=contexts)
    except (TypeError, AttributeError) as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: Exception) -> ProfileError:
    return ProfileError(f"cannot read {file}: {error}", Wrong.USAGE, hint=f"correct it, or remove it: {file}")


def save(config: Config) -> None:
    contexts = {
        name: {key: value for key, value in asdict(context).items() if value is not None}
        for name, context in config.contexts.items()
    }
    text = json.dumps({"current_context": config.current, "contexts": contexts}, indent=2)
    write_private(path(), text + "\n")


def write_private(file: Path, text: str) -> None:
    """Replaced atomically, and never readable by others, not even for a moment."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A name of its own: what a killed process left behind is in nobody's way.
    new = file.with_name(f".{file.name}.{os.getpid()}.{os.urandom(6).hex()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


class _Turn:
    """One attempt after the other at the lock beside the file, until it is ours or the time is over."""

    def __init__(self) -> None:
        file = path()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = file.with_name(f".{file.name}.lock")
        self._descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        self._deadline = time.monotonic() + TURN_SECONDS

    def take(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > self._deadline:
                raise ProfileError(
                    f"another program has been changing {path()} for {TURN_SECONDS} s",
                    Wrong.USAGE,
                    hint=f"end it (fuser {self._lock} shows it), and try again",
                ) from None
            return False
        return True

    def give_back(self) -> None:
        os.close(self._descriptor)


@contextmanager
def changing() -> Iterator[None]:
    """Take turns with all who change the file: read it again inside, or another's renewed token is lost."""
    turn = _Turn()
    try:
        while not turn.take():
            time.sleep(RETRY_SECONDS)
        yield
    finally:
        turn.give_back()


@asynccontextmanager
async def changing_async() -> AsyncIterator[None]:
    """The same where the holder may be another task of this process, which must go on meanwhile."""
    import asyncio

    turn = _Turn()
    try:
        while not turn.take():  # noqa: ASYNC110 - the holder is another process
            await asyncio.sleep(RETRY_SECONDS)
        yield
    finally:
        turn.give_back()
