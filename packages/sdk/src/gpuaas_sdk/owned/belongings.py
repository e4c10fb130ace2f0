"""Names of what an app brings to a machine. Record, removal and receipt read the same names."""

import re
from dataclasses import dataclass, fields
from typing import Self

_PATH = re.compile(r"(/[A-Za-z0-9_+@:.-]+){2,}", re.ASCII)
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
_UNIT = re.compile(r"[A-Za-z0-9:_.@-]+\.(service|socket|timer|path|mount|target|slice)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Belongings:
    """Exact names, no patterns. What is brought by packages is not named here: dpkg knows it."""

    units: tuple[str, ...] = ()
    """Of systemd. Removal stops and disables them, and deletes their file in /etc/systemd/system."""
    users: tuple[str, ...] = ()
    """Each with the group of its name. Of daemons, as `useradd --system` makes them: an account with a number of
    people's (1000 to 59999) is never removed."""
    trees: tuple[str, ...] = ()
    """Files, or directories in which nobody but the app writes: removed with all that is in them."""
    files: tuple[str, ...] = ()
    """In directories where people may keep files of their own: removed one by one."""
    directories: tuple[str, ...] = ()
    """Removed where nothing is left in them."""

    def __post_init__(self) -> None:
        for pattern, names, what in (
            (_UNIT, self.units, "a unit of systemd"),
            (_USER, self.users, "a user"),
            (_PATH, (*self.trees, *self.files, *self.directories), "an absolute path below a directory of the system"),
        ):
            for name in names:
                if not isinstance(name, str) or not pattern.fullmatch(name) or {".", ".."} & {*name.split("/")}:
                    raise ValueError(f"cannot own {name!r} on a machine: not the name of {what}")

    def __or__(self, other: Self) -> Self:
        """All names of both, each once."""
        merged = {f.name: tuple(dict.fromkeys((*getattr(self, f.name), *getattr(other, f.name)))) for f in fields(self)}
        return type(self)(**merged)

    @property
    def entries(self) -> tuple[str, ...]:
        """The lines of a record: the kind of each thing and its name."""
        return (
            *(f"unit {name}" for name in self.units),
            *(f"tree {name}" for name in self.trees),
            *(f"file {name}" for name in self.files),
            *(f"directory {name}" for name in self.directories),
            *(f"user {name}" for name in self.users),
            *(f"group {name}" for name in self.users),
        )
