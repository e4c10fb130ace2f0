"""The runner itself: all parts run, all failures are told, and nothing passes without a test."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.suite.parts import BESIDE, RESULTS, Part, Step, named
from tests.suite.parts import pytest as pytest_step
from tests.suite.report import closing, minutes
from tests.suite.results import PartResult, Result, settle_skips, take_results
from tests.suite.running import Suite
from tests.support.waiting import wait_until

TESTS = """
import pytest

def test_passes(): pass

def test_fails(): assert 1 == 2, "one is not two"

@pytest.mark.skip(reason="no such hardware")
def test_is_skipped(): pass

@pytest.fixture
def broken():
    yield
    raise RuntimeError("left something behind")

def test_fails_twice(broken): raise ValueError("first")
"""


def run(*parts: Part, directory: Path, limit: float = 60) -> dict[str, PartResult]:
    suite = Suite(parts, directory, limit=limit, shown=False)
    asyncio.run(suite.run())
    assert suite.unfinished == []
    return suite.results


def part(name: str, *steps: Step) -> Part:
    return Part(name, 1, steps)


def shell(name: str, script: str) -> Step:
    return Step(name, ("bash", "-c", script))


def of_pytest(directory: Path, text: str) -> Step:
    file = directory / "test_them.py"
    file.write_text(text)
    words = (sys.executable, "-m", "pytest", "-c", "/dev/null", f"--junitxml={RESULTS}/them.xml", str(file))
    return Step("them", words)


def outcomes(result: PartResult) -> dict[str, str]:
    return {each.name.rpartition("::")[2]: each.outcome for each in result.results}


def test_a_failed_part_hides_nothing_that_comes_after_it(tmp_path: Path) -> None:
    found = run(
        part("first", shell("breaks", "echo what an operator would see >&2; exit 3"), shell("goes on", "true")),
        part("second", shell("also runs", "true")),
        directory=tmp_path,
    )
    assert outcomes(found["first"]) == {"breaks": "failed", "goes on": "passed"}
    assert outcomes(found["second"]) == {"also runs": "passed"}
    words = closing(list(found.values()), 60)
    assert "exit status 3" in words
    assert "what an operator would see" in words
    assert words.endswith("2 passed, 1 failed, 0 skipped")


def test_every_test_is_counted_once(tmp_path: Path) -> None:
    found = run(part("tests", of_pytest(tmp_path, TESTS)), directory=tmp_path)
    assert outcomes(found["tests"]) == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_is_skipped": "failed",
        "test_fails_twice": "failed",
    }
    words = closing(list(found.values()), 1)
    assert "one is not two" in words
    assert "skipped without being on the list of skips: no such hardware" in words


def test_a_run_without_a_test_has_failed(tmp_path: Path) -> None:
    quiet = Step("quiet", ("true", f"--junitxml={RESULTS}/none.xml"))
    (result,) = run(part("tests", quiet), directory=tmp_path)["tests"].results
    assert (result.outcome, result.words) == ("failed", "it ran no test")


def test_a_run_that_dies_has_failed_although_its_tests_passed(tmp_path: Path) -> None:
    dies = "import os\n\ndef test_passes(): pass\n\ndef test_dies(): os._exit(9)\n"
    (result,) = run(part("tests", of_pytest(tmp_path, dies)), directory=tmp_path)["tests"].results
    assert result.outcome == "failed"
    assert "exit status 9" in result.words


def test_a_module_that_cannot_be_imported_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "test_whole.py").write_text("def test_passes(): pass\n")
    made = pytest_step("them", "-c", "/dev/null", "-p", "no:cacheprovider", str(tmp_path))
    (failed, passed) = sorted(run(part("tests", made), directory=tmp_path / "results")["tests"].results, key=str)
    assert (failed.outcome, passed.outcome) == ("failed", "passed")
    assert "nothing_of_that_name" in failed.words


def test_a_run_that_is_cut_off_says_so_although_a_test_failed_before(tmp_path: Path) -> None:
    slow = "import time\n\ndef test_fails(): assert False\n\ndef test_hangs(): time.sleep(600)\n"
    results = run(part("tests", of_pytest(tmp_path, slow)), directory=tmp_path, limit=8)["tests"].results
    assert "it took more than" in "".join(each.words for each in results if each.outcome == "failed")


def test_a_program_that_is_not_there_is_a_failure_of_its_part_alone(tmp_path: Path) -> None:
    found = run(part("none", Step("none", ("/nowhere/none",))), part("one", shell("one", "true")), directory=tmp_path)
    assert [result.count("failed") for result in found.values()] == [1, 0]


def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    hangs = shell("hangs", f"sleep 600 & echo $! >{tmp_path}/pid; wait")
    (result,) = run(part("tests", hangs), directory=tmp_path, limit=5)["tests"].results
    assert result.outcome == "failed"
    assert "it took more than" in result.words
    child = Path("/proc") / (tmp_path / "pid").read_text().strip() / "stat"
    wait_until(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z", "its child ended")


def test_parts_run_beside_each_other_and_the_next_one_begins_when_one_ends(tmp_path: Path) -> None:
    # Those that begin together wait for the last one, which begins when the quick one has ended.
    wait = "until [ -e {}/last ]; do sleep 0.02; done"
    waiting = [part(f"waits {number}", shell("waits", wait.format(tmp_path))) for number in range(BESIDE - 1)]
    found = run(
        *waiting,
        part("quick", shell("quick", "true")),
        part("last", shell("last", f"touch {tmp_path}/last")),
        directory=tmp_path,
        limit=30,
    )
    assert [result.count("passed") for result in found.values()] == [1] * (BESIDE + 1)


def test_an_allowed_skip_stays_a_skip() -> None:
    skipped = [Result("tests::one", "skipped", 0, "no GPU"), Result("tests::two", "skipped", 0, "no GPU")]
    assert [each.outcome for each in settle_skips(skipped, {"tests::one": "there is none"})] == ["skipped", "failed"]


def test_half_a_file_of_results_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "cut.xml").write_text('<testsuites><testsuite><testcase classname="a" name="b"')
    assert take_results(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_table_names_what_outgrew_its_budget() -> None:
    parts = [PartResult("slow", 2, 181, [Result("t", "passed", 181)]), PartResult("fine", 2, 179)]
    lines = {line.split()[0]: line for line in closing(parts, 200).splitlines() if line}
    assert "outgrew its budget" in lines["slow"]
    assert "outgrew its budget" not in lines["fine"]


def test_minutes() -> None:
    assert [minutes(seconds) for seconds in (0, 59.6, 61, 3600)] == ["0:00", "1:00", "1:01", "60:00"]


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit, match="there is no part nonsense: choose from lint, machines"):
        named(("nonsense",))
