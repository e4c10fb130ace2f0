"""`python -m tests.choose` shows the HTTP tests that touch what changed; `--run` runs them; `record` renews the map."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.choose.choosing import choose, describe
from tests.choose.mapping import DRAWN, ROOT, TestMap, failed_modules, http_modules, importers, make_map, source_files
from tests.suite.parts import TWO_WORKERS

PYTEST = (sys.executable, "-m", "pytest", *TWO_WORKERS, "-m", "not soak")


def git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def usable_base(base: str) -> str:
    """Where our work began, or the last commit where the base is not known here."""
    found = subprocess.run(["git", "merge-base", base, "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode == 0:
        return found.stdout.strip()
    print(f"{base} is not known here: only what is not committed counts (BASE=... names another base)")
    return "HEAD"


def changed_files(base: str) -> set[str]:
    """Committed since then, not committed, and not even known to git."""
    changed = git("diff", "--name-only", "--no-renames", usable_base(base))
    return {*changed, *git("ls-files", "--others", "--exclude-standard")}


def test_files(modules: set[str]) -> list[str]:
    return ["tests/http"] if modules == http_modules() else [f"tests/http/{name}.py" for name in sorted(modules)]


def run_chosen(base: str, *, run: bool) -> int:
    modules = http_modules()
    choice = choose(changed_files(base), TestMap.load(), modules, importers())
    print("\n".join(describe(choice, len(modules))), flush=True)
    if not run or not choice.modules:
        return 0
    return subprocess.run([*PYTEST, *test_files(choice.modules)], cwd=ROOT).returncode


def record(modules: set[str]) -> int:
    """Run the modules, or all of them, under the recorder, and write what they use to the map."""
    with tempfile.TemporaryDirectory(prefix="gpuaas-recording-") as directory:
        command = [
            *PYTEST,
            "-p",
            "tests.choose.recording",
            *test_files((modules or set(http_modules())) - DRAWN.keys()),
        ]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, "GPUAAS_RECORDINGS": directory}).returncode
        return keep(Path(directory), status, whole=not modules)


def keep(directory: Path, status: int, *, whole: bool) -> int:
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        print("the map stays as it was: the recording did not come to its end")
        return status
    workers = sorted(directory.iterdir())
    sources, data = source_files(), git("ls-files")
    failed = failed_modules(workers)
    recorded = make_map(workers, sources, data).without(failed)
    known = recorded if whole else TestMap.load().updated(recorded, {*sources, *data}).without(failed)
    known.save()
    print(f"{len(known.modules)} modules and {len(known.users)} files are in the map")
    if failed:
        again = " ".join(sorted(failed))
        print(f"not in it, since a test failed: {again}; run `python -m tests.choose record {again}`")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.choose", description=__doc__)
    parser.add_argument("--base", default="origin/main", help="compare with this commit (default: origin/main)")
    parser.add_argument("--run", action="store_true", help="run the chosen tests")
    commands = parser.add_subparsers(dest="command")
    recording = commands.add_parser("record", help="renew the map: run the tests and note what they use")
    recording.add_argument("modules", nargs="*", help="only these, for example test_nodes")
    given = parser.parse_args()
    if given.command == "record":
        return record({Path(name).stem for name in given.modules})
    return run_chosen(given.base, run=given.run)


if __name__ == "__main__":
    sys.exit(main())
