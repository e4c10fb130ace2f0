"""The choice of tests, and that the map names only files that exist."""

from pathlib import Path

import pytest

from tests.choose import mapping
from tests.choose.choosing import Choice, choose, describe
from tests.choose.mapping import (
    ROOT,
    TestMap,
    failed_modules,
    http_modules,
    importers,
    make_map,
    with_declarations,
)

AGAIN = "run `make map`"
MODULES = frozenset({"test_cli", "test_nodes", "test_volumes"})
KNOWN = TestMap(
    MODULES,
    {
        "packages/platform/src/a.py": frozenset({"test_nodes", "test_volumes"}),
        "packages/platform/src/b.py": frozenset({"test_cli"}),
        "packages/platform/src/every.py": MODULES,
        "packages/agent/src/c.py": frozenset(),
        "docs/reference/openapi.json": frozenset({"test_cli"}),
    },
)


IMPORTERS = {
    "tests/http/test_cli.py": {"test_cli"},
    "tests/http/test_nodes.py": {"test_nodes", "test_volumes"},
    "tests/http/test_volumes.py": {"test_volumes"},
    "tests/http/conftest.py": MODULES,
}


def chosen_of(changed: list[str], modules: frozenset[str] = MODULES, known: TestMap = KNOWN) -> Choice:
    return choose(changed, known, modules, IMPORTERS)


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ([], set()),
        (["packages/platform/src/a.py"], {"test_nodes", "test_volumes"}),
        (["packages/platform/src/a.py", "packages/platform/src/b.py"], set(MODULES)),
        (["packages/agent/src/c.py"], set()),
        (["packages/platform/src/every.py"], set(MODULES)),
        (["tests/http/test_cli.py"], {"test_cli"}),
        (["tests/http/test_nodes.py"], {"test_nodes", "test_volumes"}),
        (["tests/http/test_gone.py", "tests/e2e/test_chain.py", "tests/suite/parts.py"], set()),
        (["docs/reference/openapi.json"], {"test_cli"}),
        (["docs/index.md", "README.md", "Makefile", "benchmarks/feed.py"], set()),
        (["packages/platform/tests/test_actions.py", "stack/tests/conftest.py", "tests/machines/conftest.py"], set()),
    ],
)
def test_what_uses_a_changed_file_is_chosen(changed: list[str], chosen: set[str]) -> None:
    assert chosen_of(changed).modules == chosen


@pytest.mark.parametrize(
    "path",
    [
        "packages/platform/src/new.py",
        "packages/platform/src/migrations/9.sql",
        "tests/http/golden/errors.json",
        "requirements/runtime.txt",
        "pyproject.toml",
        "packages/sdk/pyproject.toml",
    ],
)
def test_a_file_that_is_not_in_the_map_chooses_all_and_says_so(path: str) -> None:
    choice = chosen_of(["packages/platform/src/b.py", path])
    assert choice.modules == MODULES
    assert describe(choice, 3)[1:] == [f"  all, because of {path}: not in the map"]


def test_what_everybody_imports_chooses_all_and_says_so() -> None:
    choice = chosen_of(["tests/http/conftest.py"])
    assert choice.modules == MODULES
    assert describe(choice, 3)[1:] == ["  all, because of tests/http/conftest.py: all of them import it"]


def test_imports_of_tests_are_followed() -> None:
    found = importers()
    assert "test_cli" in found["tests/e2e/warm_command_line.py"], "through tests/e2e/command_line.py"
    assert "test_nodes" not in found["tests/e2e/warm_command_line.py"]
    assert {"test_nodes", "test_volumes"} <= found["tests/http/test_nodes.py"]
    assert found["tests/support/world.py"] == http_modules(), "the conftest has it"
    assert "tests/e2e/test_chain.py" not in found


def test_a_module_that_was_not_recorded_is_chosen_with_any_change() -> None:
    modules = MODULES | {"test_new"}
    assert chosen_of(["packages/platform/src/b.py"], modules).modules == {"test_cli", "test_new"}
    assert chosen_of([], modules).modules == set()


def test_the_reason_is_said_for_each_module() -> None:
    changed = ["packages/platform/src/a.py", "tests/http/test_nodes.py"]
    assert describe(chosen_of(changed), 3) == [
        "2 of 3 HTTP test modules touch what changed:",
        "  test_nodes, because of packages/platform/src/a.py, tests/http/test_nodes.py",
        "  test_volumes, because of packages/platform/src/a.py, tests/http/test_nodes.py",
    ]
    assert describe(chosen_of(["README.md"]), 3) == ["no HTTP test touches what changed"]
    assert describe(chosen_of(["packages/platform/src/every.py"]), 3)[1:] == [
        "  all, because of packages/platform/src/every.py: all of them use it"
    ]


def test_declarations_are_used_by_whoever_uses_what_imports_them() -> None:
    model, table = "packages/contract/src/model.py", "packages/platform/src/table.py"
    route, service, unused = (f"packages/platform/src/{name}.py" for name in ("route", "service", "unused"))
    users = {
        model: frozenset({"one"}),
        table: frozenset[str](),
        route: frozenset({"two"}),
        service: frozenset({"three"}),
        unused: frozenset[str](),
    }
    imports = {model: [], table: [model], route: [model], service: [table, route], unused: [model]}
    found = with_declarations(users, imports)
    assert found[table] == {"three"}, "no function of it runs"
    assert found[model] == {"one", "two", "three"}, "also through the table"
    assert found[route] == {"two"}, "a file whose functions run is used by those who run them"
    assert found[unused] == set()


def write_recording(directory: Path, modules: list[str], notes: list[str]) -> Path:
    directory.mkdir()
    (directory / "modules").write_text("\n".join(modules))
    (directory / "notes").write_text("".join(f"{note}\n" for note in notes))
    return directory


def test_a_recording_of_two_workers_becomes_one_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "imports_of", lambda path: set())
    workers = [
        write_recording(tmp_path / "gw0", ["test_a", "test_b"], ["1 x.py", "2 x.py", "2 x.py", "2 cache.pyc"]),
        write_recording(tmp_path / "gw1", ["test_policy"], ["0 start.py", "1 x.py", "1 data.yaml"]),
    ]
    made = make_map(workers, ["x.py", "start.py", "unused.py"], ["data.yaml", "unread.yaml"])
    assert made.modules == {"test_a", "test_b", "test_policy", "test_fuzz"}, "the fuzz does what the policy walk does"
    assert made.users == {
        "x.py": made.modules,
        "start.py": made.modules,
        "unused.py": frozenset(),
        "data.yaml": frozenset({"test_policy", "test_fuzz"}),
    }
    file = tmp_path / "map.json"
    unknown = TestMap.load(file)
    assert chosen_of(["packages/platform/src/a.py"], known=unknown).modules == MODULES, "without a map, all"
    made.save(file)
    assert TestMap.load(file) == made


def test_a_module_that_failed_is_not_in_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "imports_of", lambda path: set())
    workers = [
        write_recording(tmp_path / "gw0", ["test_a", "test_b"], ["1 x.py", "2 x.py", "2 y.py"]),
        write_recording(tmp_path / "gw1", ["test_c"], ["1 x.py"]),
    ]
    (workers[0] / "failed").write_text("test_b\ntest_b\n")
    assert failed_modules(workers) == {"test_b"}
    known = make_map(workers, ["x.py", "y.py"], []).without({"test_b"})
    recorded = frozenset({"test_a", "test_c"})
    assert known == TestMap(recorded | {"test_fuzz"}, {"x.py": recorded, "y.py": frozenset()})
    assert choose(["y.py"], known, {"test_a", "test_b", "test_c"}, {}).modules == {"test_b"}, "with any change"


def test_some_modules_can_be_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "http_modules", lambda: frozenset({"test_a", "test_b", "test_new"}))
    old = TestMap(
        frozenset({"test_a", "test_b", "test_gone"}),
        {"x.py": frozenset({"test_a", "test_gone"}), "y.py": frozenset({"test_b"}), "gone.py": frozenset({"test_a"})},
    )
    recorded = TestMap(
        frozenset({"test_a", "test_new"}), {"y.py": frozenset({"test_a"}), "z.py": frozenset({"test_a"})}
    )
    renewed = old.updated(recorded, {"x.py", "y.py", "z.py"})
    assert renewed.modules == {"test_a", "test_b", "test_new"}
    assert renewed.users == {"x.py": frozenset(), "y.py": frozenset({"test_a", "test_b"})}, "z.py chooses all"


def test_the_map_speaks_of_what_exists() -> None:
    """A module or a file that it does not know chooses more, never less."""
    known = TestMap.load()
    assert known.modules, f"there is no map: {AGAIN}"
    assert known.users, f"there is no map: {AGAIN}"
    assert not known.modules - http_modules(), f"tests of the map that are gone: {AGAIN}"
    assert [path for path in known.users if not (ROOT / path).exists()] == [], f"files of the map are gone: {AGAIN}"
