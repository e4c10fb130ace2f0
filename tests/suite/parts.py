"""The parts of `make test`: what each runs, beside which others, and how many minutes it may then take."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RESULTS = "{results}"


@dataclass(frozen=True, slots=True)
class Step:
    """A command. One that runs pytest writes its results below RESULTS; any other is a check by itself."""

    name: str
    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def runs_tests(self) -> bool:
        return any(RESULTS in word for word in self.words)


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    lane: str
    budget: float
    steps: tuple[Step, ...]


def program(name: str) -> str:
    return str(BIN / name)


def below(*patterns: str) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)))


def pytest(name: str, *words: str, environment: dict[str, str] | None = None) -> Step:
    command = (sys.executable, "-m", "pytest", f"--junitxml={RESULTS}/{name}.xml", *words)
    return Step(name, command, environment or {})


UNIT_TESTS = below("packages/*/tests", "stack/tests", "apps/*/tests")
ALONE = ("packages/contract", "packages/sdk", *below("apps/*"))
# A module's tests share what is expensive, so they stay together.
TWO_WORKERS = ("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder")
# GPUAAS_SOAK=1 runs everything in its whole length.
NOT_TOO_LONG = "" if os.environ.get("GPUAAS_SOAK") else "not soak"
MACHINES = {
    "GPUAAS_ENVIRONMENT": "tests",
    "GPUAAS_STATE_DIR": "/var/lib/gpuaas-tests",
    "GPUAAS_SUBNET": "10.87.0.0/16",
}


def with_machines(step: Step) -> Step:
    """The same command with LXD, the slice image and a storage pool while it runs."""
    words = (program("gpuaas-stack"), "with-machines", "--", *step.words)
    return Step(step.name, words, {**step.environment, **MACHINES})


PARTS = (
    Part(
        "lint",
        "compute",
        1,
        (
            Step("app names", ("scripts/check-app-names",)),
            Step("style", (program("ruff"), "check", ".")),
            Step("format", (program("ruff"), "format", "--check", ".")),
            Step("imports", (program("lint-imports"),)),
            Step("types", (program("mypy"), "packages", "stack", "apps", "tests", "benchmarks", "conftest.py")),
        ),
    ),
    Part(
        "unit",
        "compute",
        2,
        (pytest("unit", "-n", "2", "-m", "not machines", *UNIT_TESTS, "tests/suite", "tests/choose"),),
    ),
    Part("http", "compute", 11, (pytest("http", *TWO_WORKERS, "-m", NOT_TOO_LONG, "tests/http"),)),
    Part(
        "alone",
        "compute",
        4,
        (
            # The unit tests run a thousand seeds of the simulation already.
            *(Step(Path(each).name, ("scripts/test-alone", each), {"GPUAAS_SIMULATION_SEEDS": "50"}) for each in ALONE),
            Step("a new app", ("scripts/test-skeleton",)),
        ),
    ),
    Part(
        "slices",
        "apps",
        11,
        (with_machines(pytest("slices", "-m", "machines", *UNIT_TESTS)),),
    ),
    Part("machines", "machines", 20, (pytest("machines", "-m", NOT_TOO_LONG, "tests/machines"),)),
    Part("e2e", "apps", 10, (pytest("e2e", "-m", NOT_TOO_LONG, "tests/e2e"),)),
)
"""In the order in which each lane runs them: what tells something first comes first."""

ALLOWED_SKIPS = {
    "sdk.tests.test_routes::test_every_route_has_a_method": "the OpenAPI document is not in the SDK; unit runs it",
}
"""The tests that may be skipped in `make test`, each with its reason; any other skip is a failure."""


def named(names: tuple[str, ...]) -> tuple[Part, ...]:
    known = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no part {', '.join(unknown)}: choose from {', '.join(known)}")
    return tuple(part for part in PARTS if not names or part.name in names)
