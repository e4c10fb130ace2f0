"""Create a working app from the skeleton."""

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import CONFLICT, USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options

_SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST_SLUG = 28
"""The slug also names a user and a systemd unit on machines."""


def new(
    slug: str,
    /,
    *,
    directory: Annotated[Path | None, Parameter(help="Directory to create; default: the slug.")] = None,
    title: Annotated[str | None, Parameter(help="Title for people; default: made from the slug.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Create an app that works as it is: manifest, controller, tests, packaging."""
    if not _SLUG.fullmatch(slug) or len(slug) > LONGEST_SLUG:
        raise CliError(
            f"invalid app name {slug!r}: use up to {LONGEST_SLUG} small letters, digits and single hyphens",
            USAGE,
        )
    words = title or slug.replace("-", " ").capitalize()
    if not re.fullmatch(r"[\w .,()+-]{1,80}", words):
        raise CliError(f"invalid title {words!r}: use up to 80 letters, digits, spaces and . , ( ) + -", USAGE)
    target = directory or Path(slug)
    if target.exists() and any(target.iterdir()):
        raise CliError(f"directory {target} is not empty", CONFLICT, hint="--directory OTHER")
    program = f"{slug}-app"
    values = {
        "__SLUG__": slug,
        "__TITLE__": words,
        "__PROGRAM__": program,
        "__PACKAGE__": program.replace("-", "_"),
    }
    made = _write(files("gpuaas_cli") / "skeleton", target, values)
    output.note(f"Created {made} files in {target}. Next: read {target / 'README.md'}")


def _write(source: Traversable, target: Path, values: dict[str, str]) -> int:
    target.mkdir(parents=True, exist_ok=True)
    made = 0
    for entry in source.iterdir():
        name = _filled(entry.name, values)
        if entry.is_dir():
            if name != "__pycache__":
                made += _write(entry, target / name, values)
            continue
        if not name.endswith(".tmpl"):
            continue
        name = name.removesuffix(".tmpl")
        # Packaging tools leave out files that begin with a dot.
        path = target / (".gitignore" if name == "gitignore" else name)
        path.write_text(_filled(entry.read_text(), values))
        made += 1
    return made


def _filled(text: str, values: dict[str, str]) -> str:
    for token, value in values.items():
        text = text.replace(token, value)
    return text
