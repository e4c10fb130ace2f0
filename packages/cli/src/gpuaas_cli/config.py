"""Named contexts in a file that only its owner can read."""

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuaas_cli.errors import USAGE, CliError

DEFAULT_CONTEXT = "default"


@dataclass(frozen=True, kw_only=True)
class Context:
    api_url: str
    email: str | None = None
    token: str | None = field(default=None, repr=False)
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
    import yaml

    file = path()
    try:
        content: Any = yaml.safe_load(file.read_text()) or {}
        contexts = {name: Context(**fields) for name, fields in (content.get("contexts") or {}).items()}
        return Config(current=content.get("current_context"), contexts=contexts)
    except FileNotFoundError:
        return Config()
    except (yaml.YAMLError, TypeError, AttributeError) as error:
        raise CliError(f"cannot read {file}: {error}", USAGE, hint=f"correct it, or remove it: {file}") from None


def save(config: Config) -> None:
    import yaml

    contexts = {
        name: {key: value for key, value in asdict(context).items() if value is not None}
        for name, context in config.contexts.items()
    }
    text = yaml.safe_dump({"current_context": config.current, "contexts": contexts}, sort_keys=False)
    write_private(path(), text)


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
