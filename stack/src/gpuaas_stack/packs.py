"""App packs: directories with a pack.yaml that say how an app is published and run. This is all that the
stack knows of any app."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuaas_stack.errors import StackError


class Demo(BaseModel):
    """The demo's deployment of the app, and its last words.

    In `show` and `next`, {name} is the instance and {machine1}, {machine2}, … are the demo's machines.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    placement: dict[str, list[int]]
    """Each component on some of the demo's machines, numbered from 1."""
    inputs: dict[str, Any] = {}
    show: str = ""
    """A command for the machine that one logs in to; what it prints is shown."""
    next: dict[str, str] = {}
    """Suggestions for the reader: a title, and the words after `gpuaas`."""

    def filled(self, text: str, machines: Sequence[str]) -> str:
        values = {f"machine{number}": machine for number, machine in enumerate(machines, start=1)}
        return text.format(name=self.name, **values)


class Pack(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path
    slug: str = Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")
    manifest: str
    bundle: list[str] = Field(min_length=1)
    controller: list[str] = Field(min_length=1)
    demo: Demo | None = None

    @property
    def manifest_path(self) -> Path:
        return self.directory / self.manifest

    def controller_argv(self) -> list[str]:
        return [program(self.controller[0]), *self.controller[1:]]

    def bundle_argv(self, output: Path, dpkg_status: Path) -> list[str]:
        values = {"{output}": str(output), "{dpkg_status}": str(dpkg_status)}
        words = [program(self.bundle[0]), *self.bundle[1:]]
        for placeholder, value in values.items():
            words = [word.replace(placeholder, value) for word in words]
        return words

    def build_bundle(self, output: Path, dpkg_status: Path) -> None:
        argv = self.bundle_argv(output, dpkg_status)
        done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=self.directory)
        if done.returncode != 0:
            last = "\n".join(done.stderr.splitlines()[-15:])
            raise StackError(f"cannot build the bundle of {self.slug} ({' '.join(argv)}):\n{last}")
        if not output.exists():
            raise StackError(f"cannot build the bundle of {self.slug}: {argv[0]} succeeded without {output}")


def program(name: str) -> str:
    """Find a program beside this one, where those of packs are installed, before PATH is searched."""
    beside = Path(sys.executable).parent / name
    return str(beside) if "/" not in name and beside.exists() else name


def read_pack(directory: Path) -> Pack:
    path = directory / "pack.yaml"
    try:
        content = yaml.safe_load(path.read_text())
        pack = Pack.model_validate({**content, "directory": directory})
    except (ValidationError, yaml.YAMLError, TypeError) as error:
        raise StackError(f"cannot read the app pack {path}: {error}") from error
    if not pack.manifest_path.is_file():
        raise StackError(f"cannot read the app pack {path}: there is no {pack.manifest} beside it")
    return pack


def find_packs(app_dirs: Iterable[Path]) -> list[Pack]:
    packs: dict[str, Pack] = {}
    for app_dir in app_dirs:
        for path in sorted(app_dir.glob("*/pack.yaml")):
            pack = read_pack(path.parent)
            if pack.slug in packs:
                other = packs[pack.slug].directory
                raise StackError(f"cannot use two app packs named {pack.slug}: {other} and {pack.directory}")
            packs[pack.slug] = pack
    return list(packs.values())
