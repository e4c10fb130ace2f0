"""Results of a part's tests, read from the files that pytest wrote."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Result:
    """One test, or one command that is a check by itself."""

    name: str
    outcome: Outcome
    seconds: float
    words: str = ""


@dataclass(slots=True)
class PartResult:
    name: str
    budget: float
    seconds: float = 0
    results: list[Result] = field(default_factory=list)

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome == outcome for result in self.results)

    @property
    def over_budget(self) -> bool:
        return self.seconds / 60 > 1.5 * self.budget


def take_results(directory: Path) -> list[Result]:
    """Read the files that pytest left there, and delete them, so that the next step finds only its own."""
    found: list[Result] = []
    for path in sorted(directory.glob("*.xml")):
        # Half a file: pytest was ended while it wrote, which its exit status tells.
        with suppress(ElementTree.ParseError):
            found += read_junit(path)
        path.unlink()
    return found


def read_junit(path: Path) -> list[Result]:
    """The tests of one run of pytest. A test that fails and whose clean-up fails too is there once, as failed."""
    found: dict[str, Result] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        result = _result(case)
        before = found.get(result.name)
        if before is None or before.outcome != "failed":
            found[result.name] = result
    return list(found.values())


def _result(case: ElementTree.Element) -> Result:
    # The class name is the dotted path of the file, with the class where there is one.
    name = f"{case.get('classname', '')}::{case.get('name', '')}".removeprefix("::")
    seconds = float(case.get("time", "0"))
    outcome: Outcome = "passed"
    words: list[str] = []
    for child in case:
        if child.tag in ("failure", "error"):
            outcome = "failed"
            words += [child.get("message", ""), child.text or ""] if child.tag == "error" else [child.text or ""]
        elif child.tag == "skipped" and outcome == "passed":
            outcome = "skipped"
            words.append(child.get("message", ""))
    return Result(name, outcome, seconds, "\n".join(word.strip() for word in words if word.strip()))


def settle_skips(results: list[Result], allowed: dict[str, str]) -> list[Result]:
    """A skip that is not on the list is a failure: a test that did not run has proved nothing."""
    return [
        Result(result.name, "failed", result.seconds, f"skipped without being on the list of skips: {result.words}")
        if result.outcome == "skipped" and result.name not in allowed
        else result
        for result in results
    ]
