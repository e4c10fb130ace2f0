"""The page is green only for what was seen to work; these break one thing after the other."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_app.readiness import COVERAGE, DECOMMISSION, DEPLOY, GATES, judge, read_results, render

CHECK = {"check": "packages", "command": "dpkg-query -W 'slurm*' | sort", "found": "nothing", "ok": True, "at": "now"}
RECEIPT = {
    "kind": "receipt",
    "of": "gpuaas instance receipt smoke",
    "ok": True,
    "machines": [{"machine": "one", "checks": 9, "left": [], "some": [CHECK]}],
}
FIRST_JOB = {"kind": "first_job", "at": "now", "batch_state": "COMPLETED", "account": "research"}
VERSIONS = {"kind": "versions", "at": "now", "app": "0.2.0", "expected_runtime": "slurm 22", "observed_runtime": "22"}
COMMAND = {"kind": "command", "command": "gpuaas instance show smoke", "exit_status": 0, "said": "a | b"}


def step(title: str, *evidence: dict[str, Any], ok: bool | None = True) -> dict[str, Any]:
    return {"title": title, "at": "2030-01-01T00:00:00+00:00", "ok": ok, "seconds": 1.5, "evidence": [*evidence]}


@pytest.fixture
def results() -> dict[str, Any]:
    """A run in which everything worked, with the steps that the gates name."""
    evidence: dict[str, list[dict[str, Any]]] = {DEPLOY: [COMMAND, FIRST_JOB, VERSIONS], DECOMMISSION: [RECEIPT]}
    titles: list[str] = []
    for gate in GATES:
        titles += [title for title in gate.steps if titles.count(title) < gate.steps.count(title)]
    steps = [step(title, *deepcopy(evidence.get(title, []))) for title in titles]
    return {"started_at": "2030-01-01T00:00:00+00:00", "commit": "abc", "steps": steps}


def red(results: dict[str, Any]) -> dict[str, list[str]]:
    return {verdict.gate.title: verdict.problems for verdict in judge(results) if not verdict.green}


def test_a_run_in_which_everything_worked_is_green(results: dict[str, Any]) -> None:
    assert red(results) == {}
    page = render(results)
    assert "The app is ready." in page
    assert "🔴" not in page
    assert "dpkg-query -W 'slurm*' | sort" in page


@pytest.mark.parametrize("ok", [False, None])
def test_a_step_that_failed_or_was_cut_short_is_red(results: dict[str, Any], ok: bool | None) -> None:
    for number, each in enumerate(results["steps"]):
        broken = deepcopy(results)
        broken["steps"][number]["ok"] = ok
        gates = {gate.title for gate in GATES if each["title"] in gate.steps}
        assert set(red(broken)) == gates
        assert "**not ready**" in render(broken)


def test_a_step_that_did_not_run_is_red(results: dict[str, Any]) -> None:
    for number, each in enumerate(results["steps"]):
        broken = deepcopy(results)
        del broken["steps"][number]
        for gate in GATES:
            if each["title"] in gate.steps:
                assert red(broken)[gate.title] == [f"“{each['title']}” did not run"]


def test_without_a_run_everything_is_red(tmp_path: Path) -> None:
    results = read_results(tmp_path / "absent.json")
    assert set(red(results)) == {gate.title for gate in GATES}
    assert "from no run" in render(results)


def test_a_new_step_counts_without_being_named(results: dict[str, Any]) -> None:
    results["steps"].append(step("something new"))
    assert red(results) == {}
    results["steps"][-1]["ok"] = False
    assert red(results) == {"Day-two smoke": ["“something new” failed"]}


def test_a_title_may_say_more_after_a_comma(results: dict[str, Any]) -> None:
    for each in results["steps"]:
        if each["title"] != DECOMMISSION:
            each["title"] += ", on a Tuesday"
    assert red(results) == {}
    results["steps"].append(step("decommission with another key", ok=False))
    assert list(red(results)) == ["Day-two smoke"]


@pytest.mark.parametrize(
    ("kind", "change", "gate"),
    [
        ("receipt", None, "Honest decommission"),
        ("receipt", {"ok": False}, "Honest decommission"),
        ("receipt", {"machines": [{"machine": "one", "checks": 0, "left": [], "some": []}]}, "Honest decommission"),
        ("first_job", None, "Accounting"),
        ("first_job", {"batch_state": "FAILED"}, "Accounting"),
        ("versions", None, "Version labels"),
        ("versions", {"observed_runtime": None}, "Version labels"),
        ("versions", {"observed_runtime": "23"}, "Version labels"),
    ],
)
def test_a_gate_without_its_evidence_is_red(
    results: dict[str, Any], kind: str, change: dict[str, Any] | None, gate: str
) -> None:
    for each in results["steps"]:
        found = [evidence for evidence in each["evidence"] if evidence["kind"] == kind]
        for evidence in found:
            if change is None:
                each["evidence"].remove(evidence)
            else:
                evidence.update(change)
    assert list(red(results)) == [gate]


def test_the_results_are_read_as_the_suite_wrote_them(results: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "smoke.json"
    path.write_text(json.dumps(results))
    assert read_results(path) == results


def test_the_page_says_what_its_gate_covers_and_what_not(results: dict[str, Any]) -> None:
    for page in (render(results), render({"started_at": "", "commit": "", "steps": []})):
        assert page.count(COVERAGE) == 1


def test_what_the_page_says_is_not_offered_is_not() -> None:
    manifest = yaml.safe_load((Path(__file__).parents[1] / "manifest.yaml").read_text())
    (line,) = (line for line in COVERAGE.splitlines() if "does not offer" in line)
    named = line.partition(": ")[2].split(", ")[:-1]
    assert len(named) == 5
    assert not set(named) & {operation["kind"] for operation in manifest["operations"]}
