"""Things of others on a machine: put where the app would bring its own, and looked for after the app was there."""

import random
import re
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpuaas_conformance.machines import Person

PLACES = ("/etc/", "/opt/", "/srv/", "/home/", "/var/lib/")
"""Where people keep what nobody can make again."""
MOST_OF_A_KIND = 3
_USER = re.compile(r"([a-z_][a-z0-9_-]*):[^:]*:\d+:\d+:")
_UNIT = re.compile(r"/etc/systemd/system/[A-Za-z0-9_.@-]+\.service")
UNIT_OF_OTHERS = "[Service]\nExecStart=/bin/true\n"


@dataclass(frozen=True, slots=True)
class Things:
    """Names on one machine that the app uses, and that somebody else had before it."""

    directories: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    def each(self) -> "list[Things]":
        """Each of them alone."""
        return [
            *(Things(directories=(name,)) for name in self.directories),
            *(Things(units=(name,)) for name in self.units),
            *(Things(users=(name,)) for name in self.users),
        ]

    @property
    def make_script(self) -> str:
        lines = []
        for path in map(shlex.quote, self.directories):
            lines += [f"mkdir {path}", f"echo 'of somebody else' >{path}/of-others", f"chmod 0640 {path}/of-others"]
        lines += [f"printf %s {shlex.quote(UNIT_OF_OTHERS)} >{shlex.quote(path)}" for path in self.units]
        lines += [f"useradd --system --no-create-home --user-group {shlex.quote(name)}" for name in self.users]
        return "\n".join([*lines, "systemctl daemon-reload", ""])

    @property
    def look_script(self) -> str:
        """Print all that there is to say about them."""
        paths = " ".join(map(shlex.quote, (*self.directories, *self.units)))
        lines = [f"getent passwd {shlex.quote(name)} || true" for name in self.users]
        if paths:
            lines += [
                f"find {paths} -printf '%p %y %m %u %g\\n' 2>/dev/null || true",
                f"find {paths} -type f -exec sha256sum {{}} + 2>/dev/null || true",
            ]
        return "\n".join([*lines, ""])

    @property
    def remove_script(self) -> str:
        lines = [f"rm -rf {shlex.quote(path)}" for path in (*self.directories, *self.units)]
        lines += [f"if getent passwd {name} >/dev/null; then userdel {name}; fi" for name in self.users]
        lines += [f"if getent group {name} >/dev/null; then groupdel {name}; fi" for name in self.users]
        return "\n".join([*lines, "systemctl daemon-reload", ""])


def things_of(before: set[str], running: set[str], draw: random.Random) -> Things:
    """Choose from what the app brings to a machine: directories in a place that was there, units and users."""
    brought = running - before
    paths = sorted(line for line in brought if line.startswith("/"))
    parents = {path.rpartition("/")[0] for path in paths}
    directories = [
        path
        for path in paths
        if path in parents and path.startswith(PLACES) and path.rpartition("/")[0] in before and _is_plain(path)
    ]
    units = [path for path in paths if _UNIT.fullmatch(path)]
    users = sorted(found[1] for found in map(_USER.match, brought) if found)

    def some(names: list[str]) -> tuple[str, ...]:
        return tuple(sorted(draw.sample(names, min(len(names), MOST_OF_A_KIND))))

    return Things(some(directories), some(units), some(users))


def _is_plain(path: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_./+@-]+", path) is not None


@asynccontextmanager
async def planted(person: Person, things: Sequence[tuple[str, Things]]) -> AsyncIterator[None]:
    """By allocation id. They go again at the end, as do those that an app has changed."""
    try:
        for allocation_id, those in things:
            await person.run_as_root(allocation_id, those.make_script)
        yield
    finally:
        for allocation_id, those in things:
            await person.run_as_root(allocation_id, those.remove_script)


async def look_at(person: Person, things: Sequence[tuple[str, Things]]) -> list[set[str]]:
    return [set((await person.run_as_root(where, those.look_script)).splitlines()) for where, those in things]
