"""Which HTTP test modules touch what changed, and why."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch

from tests.choose.mapping import TestMap

NO_HTTP = (
    "*/tests/*",
    "tests/*.py",
    "benchmarks/*",
    "docs/*",
    "scripts/*",
    "*.md",
    ".gitignore",
    "Makefile",
)
"""Files that no HTTP test depends on, unless the map says that one reads them. Here `*` also stands for `/`."""


@dataclass
class Choice:
    modules: set[str] = field(default_factory=set)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    """By what chose them: the modules."""
    all_because: list[str] = field(default_factory=list)
    """Files that are not in the map, or that all modules use."""

    def add(self, modules: Iterable[str], because: str) -> None:
        chosen = sorted(modules)
        self.modules.update(chosen)
        self.reasons[because] = chosen


def choose(
    changed: Iterable[str], known: TestMap, modules: Collection[str], importers: Mapping[str, Collection[str]]
) -> Choice:
    """Choose among `modules`, all that exist. One that was never recorded is always chosen. `importers`: by file of the
    tests, the modules that import it."""
    choice = Choice()
    changed = sorted(changed)
    for path in changed:
        if path in importers:
            choice.add(set(importers[path]) & set(modules), path)
            if set(importers[path]) >= set(modules):
                choice.all_because.append(f"{path}: all of them import it")
        elif path in known.users:
            _add_users(choice, path, known, modules)
        elif not any(fnmatch(path, pattern) for pattern in NO_HTTP):
            choice.add(modules, path)
            choice.all_because.append(f"{path}: not in the map")
    if changed and (new := set(modules) - known.modules):
        choice.add(new, "not recorded yet")
    return choice


def _add_users(choice: Choice, path: str, known: TestMap, modules: Collection[str]) -> None:
    users = known.users[path]
    choice.add(users & set(modules), path)
    if users == known.modules:
        choice.all_because.append(f"{path}: all of them use it")


def describe(choice: Choice, total: int) -> list[str]:
    """Say what was chosen and why, in lines."""
    if not choice.modules:
        return ["no HTTP test touches what changed"]
    lines = [f"{len(choice.modules)} of {total} HTTP test modules touch what changed:"]
    if choice.all_because:
        return [*lines, *(f"  all, because of {reason}" for reason in choice.all_because)]
    for module in sorted(choice.modules):
        because = [path for path, chosen in choice.reasons.items() if module in chosen]
        more = f" and {len(because) - 3} more" if len(because) > 3 else ""
        lines.append(f"  {module}, because of {', '.join(because[:3])}{more}")
    return lines
