"""The map from source files to the HTTP test modules that use them: kept in map.json, made from a recording."""

import ast
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parent / "map.json"
HTTP_TESTS = ROOT / "tests" / "http"
ALL = "*"
NEARLY_ALL = 0.75
"""A file that is used by more than this part of the modules chooses all: the difference is not worth its lines."""
DRAWN = {"test_fuzz": "test_policy"}
"""Modules that draw what they do, another thing in each run, so that a recording would be chance. Each uses what the
module beside it uses, which does all of it in every run."""
CODE = ("packages/*/src", "stack/src", "apps/*/src")
DECLARATIONS = "packages/contract/"
"""Models and enums: to use them runs no function of theirs."""


@dataclass(frozen=True)
class TestMap:
    modules: frozenset[str]
    """The test modules that were recorded."""
    users: Mapping[str, frozenset[str]]
    """By source file: the modules that use it. A file without any was there and was used by none."""

    __test__ = False

    @classmethod
    def load(cls, file: Path = FILE) -> "TestMap":
        """Read the map; where there is none, nothing is known, and so everything is chosen."""
        stored = json.loads(file.read_text()) if file.exists() else {"modules": [], "files": {}}
        modules = frozenset(stored["modules"])
        users = {path: modules if used == ALL else frozenset(used.split()) for path, used in stored["files"].items()}
        return cls(modules, users)

    def save(self, file: Path = FILE) -> None:
        """One line a file, sorted: a new recording of a small change is a small difference."""
        files = {path: self._written(self.users[path]) for path in sorted(self.users)}
        file.write_text(json.dumps({"modules": sorted(self.modules), "files": files}, indent=1) + "\n")

    def _written(self, users: frozenset[str]) -> str:
        return ALL if len(users) > NEARLY_ALL * len(self.modules) else " ".join(sorted(users))

    def without(self, modules: Collection[str]) -> "TestMap":
        """Forget modules: they count as never recorded, and so are chosen with any change."""
        gone = frozenset(modules)
        return TestMap(self.modules - gone, {path: used - gone for path, used in self.users.items()})

    def updated(self, recorded: "TestMap", existing: Collection[str]) -> "TestMap":
        """Return this map with some modules recorded anew, without what is gone. A new file stays unknown, and so
        chooses all, until all modules are recorded: which of the others use it is not known."""
        modules = (self.modules | recorded.modules) & http_modules()
        anew = recorded.modules - DRAWN.keys()
        users = {
            path: ((used - anew) | recorded.users.get(path, frozenset())) & modules
            for path, used in self.users.items()
            if path in existing
        }
        return TestMap(modules, users)


def http_modules() -> frozenset[str]:
    return frozenset(path.stem for path in HTTP_TESTS.glob("test_*.py"))


def source_files() -> list[str]:
    """The Python files that a recording can speak of."""
    found = (path for place in CODE for path in ROOT.glob(f"{place}/**/*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def read_recording(workers: Iterable[Path], known: Collection[str]) -> tuple[frozenset[str], dict[str, set[str]]]:
    """All modules that were recorded, and by file the modules that used it. Number 0 stands for all of them."""
    modules: set[str] = set()
    used: dict[str, set[str]] = {}
    for worker in workers:
        names = (worker / "modules").read_text().split()
        modules.update(names)
        for line in (worker / "notes").read_text().splitlines():
            number, path = line.split(" ", 1)
            if path in known:
                used.setdefault(path, set()).add(names[int(number) - 1] if int(number) else ALL)
    return frozenset(modules), {path: modules if ALL in found else found for path, found in used.items()}


def failed_modules(workers: Iterable[Path]) -> set[str]:
    """A module with a test that failed has not used all that it uses."""
    files = [worker / "failed" for worker in workers]
    return {name for file in files if file.exists() for name in file.read_text().split()}


def make_map(workers: Iterable[Path], sources: Collection[str], data: Collection[str]) -> TestMap:
    """`data` are files that are no Python and were read; those that nobody read are left out."""
    modules, used = read_recording(workers, {*sources, *data})
    users = {path: frozenset(used.get(path, ())) for path in {*sources, *used}}
    found = with_declarations(users, {path: imports_of(path) for path in sources})
    return TestMap(modules | DRAWN.keys(), {path: _with_drawn(used) for path, used in found.items()})


def _with_drawn(used: frozenset[str]) -> frozenset[str]:
    return used | {drawn for drawn, alike in DRAWN.items() if alike in used}


def with_declarations(
    users: Mapping[str, frozenset[str]], imports: Mapping[str, Collection[str]]
) -> dict[str, frozenset[str]]:
    """Count who imports a file that declares: models and constants are used without running a function there."""
    importers: dict[str, set[str]] = {path: set() for path in users}
    for path, imported in imports.items():
        for other in imported:
            importers.setdefault(other, set()).add(path)
    declaring = [path for path in imports if path.startswith(DECLARATIONS) or not users[path]]
    found = dict(users)
    changed = True
    while changed:
        changed = False
        for path in declaring:
            more = found[path].union(*(found[importer] for importer in importers[path]))
            changed = changed or more != found[path]
            found[path] = more
    return found


def importers() -> dict[str, frozenset[str]]:
    """By file of the tests: the HTTP test modules that import it, or what imports it. Their conftest is everybody's."""
    found: dict[str, set[str]] = {}
    everybody = _reached(HTTP_TESTS / "conftest.py")
    for name in http_modules():
        for path in _reached(HTTP_TESTS / f"{name}.py") | everybody:
            found.setdefault(path, set()).add(name)
    return {path: frozenset(modules) for path, modules in found.items()}


def _reached(file: Path) -> set[str]:
    """The file, and all of the tests that it imports, directly or not."""
    reached: set[str] = set()
    waiting = {str(file.relative_to(ROOT))}
    while waiting:
        path = waiting.pop()
        reached.add(path)
        waiting |= {each for each in imports_of(path, ("",)) if each.startswith("tests/")} - reached
    return reached


@cache
def imports_of(path: str, places: tuple[str, ...] = CODE) -> frozenset[str]:
    """The files of this repository that a file names in its imports, of the packages in these places."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return frozenset(file for name in names for file in _files_of(name, places))


def _files_of(module: str, places: tuple[str, ...]) -> Iterable[str]:
    inside = module.replace(".", "/")
    for place in places:
        pattern = f"{place}/{inside}".removeprefix("/")
        for path in (*ROOT.glob(f"{pattern}.py"), *ROOT.glob(f"{pattern}/__init__.py")):
            yield str(path.relative_to(ROOT))
