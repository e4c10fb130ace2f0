"""A working app to begin with: `gpuaas app new`."""

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import CONFLICT, USAGE, CliError

_SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST_SLUG = 28
"""It is also the name of a user on the machines, and a unit's."""


def new(
    slug: str,
    /,
    *,
    directory: Annotated[Path | None, Parameter(help="Where to make it; the slug where left out.")] = None,
    title: Annotated[str | None, Parameter(help="What people read; made from the slug where left out.")] = None,
) -> None:
    """Make a new app: manifest, controller, tests and packaging that work, to be changed from there."""
    if not _SLUG.fullmatch(slug) or len(slug) > LONGEST_SLUG:
        raise CliError(
            f"{slug!r} cannot be the name of an app: small letters, digits and single hyphens, at most {LONGEST_SLUG}",
            USAGE,
        )
    words = title or slug.replace("-", " ").capitalize()
    if not re.fullmatch(r"[\w .,()+-]{1,80}", words):
        raise CliError("the title has letters, digits, spaces and . , ( ) + - in it, at most 80", USAGE)
    target = directory or Path(slug)
    if target.exists() and any(target.iterdir()):
        raise CliError(f"{target} is there already and not empty", CONFLICT, hint="--directory ANOTHER")
    program = f"{slug}-app"
    values = {
        "__SLUG__": slug,
        "__TITLE__": words,
        "__PROGRAM__": program,
        "__PACKAGE__": program.replace("-", "_"),
    }
    made = _write(files("gpuaas_cli") / "skeleton", target, values)
    output.note(f"Made {made} files in {target}. What to do with them is in {target / 'README.md'}")


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
