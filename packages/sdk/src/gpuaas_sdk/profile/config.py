"""Named contexts in a file that only its owner can read."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuaas_sdk.profile.errors import ProfileError, Wrong

DEFAULT_CONTEXT = "default"


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
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(text)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
