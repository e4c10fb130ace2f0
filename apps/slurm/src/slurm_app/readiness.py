"""`slurm-app readiness`: the gate before teams outside use the app, made from what the smoke suite saw.

Green takes a run in which every step of the gate was seen to succeed, with its evidence. A step that failed, that was
cut short or that did not run is red, and so is a gate without its evidence: nothing here is taken on trust."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Step = dict[str, Any]
Results = dict[str, Any]

DEPLOY = "deploy, controller and worker apart"
DECOMMISSION = "decommission"
REDEPLOY = "redeploy at once, on one machine"


def _receipts(steps: list[Step]) -> str:
    """Say what is missing; empty where every receipt is there and clean. The others below do the same."""
    for step in steps:
        receipts = _evidence([step], "receipt")
        if step["title"] == DECOMMISSION and not receipts:
            return f"“{DECOMMISSION}” of {step['at']} has no receipt"
        for receipt in receipts:
            checks = [machine["checks"] for machine in receipt["machines"]]
            if receipt["ok"] is not True or not all(checks) or any(m["left"] for m in receipt["machines"]):
                return f"the receipt of {receipt['of']} is not clean"
    return ""


def _row_in_sacct(steps: list[Step]) -> str:
    jobs = _evidence(steps, "first_job")
    seen = bool(jobs) and all(job["batch_state"] == "COMPLETED" for job in jobs)
    return "" if seen else "no row of a job in sacct was seen"


def _versions_agree(steps: list[Step]) -> str:
    labels = _evidence(steps, "versions")
    if not labels:
        return "no version was seen"
    return "" if all(_agree(each) for each in labels) else "the daemons report another version than is expected"


def _agree(labels: dict[str, Any]) -> bool:
    """The number alone: what is expected is named beside it (`slurm 22.05.8`)."""
    observed = labels["observed_runtime"] or ""
    return bool(labels["app"] and observed) and observed.split()[-1] == labels["expected_runtime"].split()[-1]


@dataclass(frozen=True, slots=True)
class Gate:
    title: str
    promise: str
    steps: tuple[str, ...]
    """That must have run and succeeded; one that is named twice, twice. After a comma, its title may say more."""
    missing_evidence: Callable[[list[Step]], str] = lambda steps: ""
    all_others: bool = False
    """Also every step that no other gate names: a new one counts without being named here."""


GATES = (
    Gate(
        "Honest decommission",
        "What the app brought is gone, each machine was looked at, and the same machines can be used again at once.",
        ("remove, with its controller killed on the way", DECOMMISSION, REDEPLOY, DECOMMISSION),
        _receipts,
    ),
    Gate(
        "Accounting",
        "A cluster counts as running only after a job's row is in sacct, under the project's account.",
        (DEPLOY, REDEPLOY),
        _row_in_sacct,
    ),
    Gate(
        "Version labels",
        "App, expected and observed version are on the instance; where they differ, a condition says so.",
        (DEPLOY, "health"),
        _versions_agree,
    ),
    Gate(
        "Day-two smoke",
        "Workers come, go, fail and are repaired while jobs run.",
        (
            "preflight finds what is in the way",
            "access: every command as printed",
            "add a worker while a job runs on another",
            "drain with a running job, and resume",
            "a person's drain is not undone",
            "add the same machine again",
            "recover a worker whose slurmd and record are gone",
            "restart of a worker's machine",
            "replace a worker by the controller's machine",
        ),
        all_others=True,
    ),
)


COVERAGE = """\
## What this covers, and what it does not

Covered is what the steps below did, once each, in one run: through the command line and the public API, on three slices
of one host and on one machine that the platform knows by address and key alone (a stand-in, on the same host).

A green page says nothing about:

- other clusters than these: more than two workers at a time, whole hosts, several clusters beside each other, load
- real GPUs: jobs are given device files and their number, no program computes on them
- operations that the app does not offer: start, stop, restart, upgrade, configure, a new munge key on all machines
- the loss of the controller's machine: the accounting database is on it, and no backup is made of it
- faults in the middle of a step, except for the one kill that is named: the app's own suites have those
- anything that changed after the commit above"""


@dataclass(frozen=True, slots=True)
class Verdict:
    gate: Gate
    steps: list[Step]
    problems: list[str]

    @property
    def green(self) -> bool:
        return not self.problems


def read_results(path: Path) -> Results:
    return dict(json.loads(path.read_text())) if path.exists() else {"started_at": "", "commit": "", "steps": []}


def judge(results: Results) -> list[Verdict]:
    everything: list[Step] = results["steps"]
    verdicts = []
    for gate in GATES:
        steps = [step for step in everything if _named(step, gate) or (gate.all_others and _is_new(step))]
        problems = [f"“{step['title']}” {_word(step)}" for step in steps if step["ok"] is not True]
        absent = Counter(gate.steps) - Counter(_named(step, gate) for step in steps)
        problems += [f"“{title}” did not run" for title in absent]
        if not problems and (missing := gate.missing_evidence(steps)):
            problems.append(missing)
        verdicts.append(Verdict(gate, steps, problems))
    return verdicts


def _named(step: Step, gate: Gate) -> str:
    """Return the name that the gate has for the step; empty where it has none."""
    title = f"{step['title']},"
    return next((name for name in gate.steps if title.startswith(f"{name},")), "")


def _is_new(step: Step) -> bool:
    return not any(_named(step, gate) for gate in GATES)


def _word(step: Step) -> str:
    return {True: "passed", False: "failed", None: "was cut short"}[step["ok"]]


def _evidence(steps: list[Step], kind: str) -> list[dict[str, Any]]:
    return [each for step in steps for each in step["evidence"] if each["kind"] == kind]


def render(results: Results) -> str:
    verdicts = judge(results)
    ready = "ready" if all(verdict.green for verdict in verdicts) else "**not ready**"
    run = f"the run of {results['started_at']}, commit `{results['commit'][:12]}`" if results["steps"] else "no run"
    lines = [
        "# Readiness",
        "",
        f"Made by `make smoke` from {run}; not written by hand. The app is {ready}.",
        "",
        "| gate | | what it promises |",
        "|---|---|---|",
        *(f"| {v.gate.title} | {_colour(v)} | {v.gate.promise} |" for v in verdicts),
        "",
        COVERAGE,
    ]
    for verdict in verdicts:
        lines += ["", f"## {verdict.gate.title}: {_colour(verdict)}", ""]
        lines += [f"- {problem}" for problem in verdict.problems]
        lines += [""] if verdict.problems else []
        lines += ["| step | | at | s |", "|---|---|---|---|"]
        lines += [f"| {step['title']} | {_word(step)} | {step['at']} | {step['seconds']} |" for step in verdict.steps]
        for step in verdict.steps:
            lines += ["", f"**{step['title']}**", ""] if step["evidence"] else []
            lines += dict.fromkeys(f"- {line}" for each in step["evidence"] for line in _shown(each))
    return "\n".join(lines) + "\n"


def _colour(verdict: Verdict) -> str:
    return "🟢 green" if verdict.green else "🔴 red"


def _shown(each: dict[str, Any]) -> list[str]:
    if each["kind"] == "command":
        said = f": {_code(each['said'])}" if each["said"] else ""
        return [f"{_code(each['command'])} → {each['exit_status']}{said}"]
    if each["kind"] == "receipt":
        said = "clean" if each["ok"] is True else "NOT clean"
        return [f"receipt of {_code(each['of'])}: {said}", *(_shown_machine(machine) for machine in each["machines"])]
    facts = ", ".join(f"{key} {_code(json.dumps(value))}" for key, value in each.items() if key not in {"kind", "at"})
    return [f"{each['kind'].replace('_', ' ')}: {facts}"]


def _shown_machine(machine: dict[str, Any]) -> str:
    """Every check that did not pass; of the others, one is enough here."""
    checks = machine["left"] or machine["some"][:1]
    some = ", ".join(f"{check['check']} {_code(check['command'])} found {check['found']}" for check in checks)
    return f"machine {machine['machine']}: {machine['checks']} checks, {len(machine['left'])} not passed: {some}"


def _code(text: str) -> str:
    """Shorten to one line: the whole is in the operation and in the results."""
    flat = " ".join(text.split()).replace("`", "'")
    return f"`{flat if len(flat) <= 120 else flat[:119] + '…'}`"
