"""The parts of `make test`: what each runs, and how many minutes it may take with two others beside it."""

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
    budget: float
    steps: tuple[Step, ...]


def program(name: str) -> str:
    return str(BIN / name)


def below(*patterns: str) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)))


def without(modules: tuple[str, ...]) -> tuple[str, ...]:
    """The words for pytest that leave out what another part runs."""
    return tuple(f"--ignore={module}" for module in modules)


def pytest(name: str, *words: str, marked: str = "", environment: dict[str, str] | None = None) -> Step:
    """A module that cannot be imported fails, and the tests of the others run."""
    options = ("--continue-on-collection-errors", f"--junitxml={RESULTS}/{name}.xml", "-m", _marked(marked))
    return Step(name, (sys.executable, "-m", "pytest", *options, *words), environment or {})


def _marked(marked: str) -> str:
    """GPUAAS_SOAK=1 runs everything in its whole length. What wants the machine for itself never runs beside others."""
    chosen = [marked, "not quiet", "" if os.environ.get("GPUAAS_SOAK") else "not soak"]
    return " and ".join(word for word in chosen if word)


UNIT_TESTS = below("packages/*/tests", "stack/tests", "apps/*/tests")
PACKAGES_ALONE = ("packages/contract", "packages/sdk", *below("apps/*"))
SMOKE_TESTS = below("tests/e2e/test_smoke*.py")
REFERENCE_TESTS = below(*(f"tests/machines/test_{name}.py" for name in ("conformance", "rollcall_life", "tutorial")))
# A module's tests share what is expensive, so they stay together.
TWO_WORKERS = ("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder")


def with_machines(step: Step, environment: str, subnet: str) -> Step:
    """The same command with LXD, the slice image and a storage pool while it runs."""
    words = (program("gpuaas-stack"), "with-machines", "--", *step.words)
    own = {"ENVIRONMENT": environment, "STATE_DIR": f"/var/lib/gpuaas-{environment}", "SUBNET": subnet}
    return Step(step.name, words, {**step.environment, **{f"GPUAAS_{name}": value for name, value in own.items()}})


LINT = Part(
    "lint",
    1,
    (
        Step("app names", ("scripts/check-app-names",)),
        Step("style", (program("ruff"), "check", ".")),
        Step("format", (program("ruff"), "format", "--check", ".")),
        Step("imports", (program("lint-imports"),)),
        Step("types", (program("mypy"), "packages", "stack", "apps", "tests", "benchmarks", "conftest.py")),
    ),
)
UNIT = Part("unit", 2, (pytest("unit", "-n", "2", *UNIT_TESTS, "tests/suite", "tests/choose", marked="not machines"),))
ALONE = Part(
    "alone",
    2,
    (
        # The unit tests run a thousand seeds of the simulation already.
        *(
            Step(Path(each).name, ("scripts/test-alone", each), {"GPUAAS_SIMULATION_SEEDS": "50"})
            for each in PACKAGES_ALONE
        ),
        Step("a new app", ("scripts/test-skeleton",)),
    ),
)
HTTP = Part("http", 12, (pytest("http", *TWO_WORKERS, "tests/http"),))
MACHINES = Part("machines", 13, (pytest("machines", *without(REFERENCE_TESTS), "tests/machines"),))
REFERENCE = Part(
    "reference",
    10,
    (pytest("reference", *REFERENCE_TESTS, environment={"GPUAAS_MACHINES_SLOT": "1"}),),
)
APPS = Part(
    "apps",
    12,
    (with_machines(pytest("apps", *below("apps/*/tests"), marked="machines"), "tests-apps", "10.88.0.0/16"),),
)
SLICES = Part(
    "slices",
    4,
    (
        with_machines(
            pytest("slices", *below("packages/*/tests", "stack/tests"), marked="machines"), "tests", "10.87.0.0/16"
        ),
    ),
)
E2E = Part("e2e", 10, (pytest("e2e", *without(SMOKE_TESTS), "tests/e2e"),))
SMOKE = Part("smoke", 5, (pytest("smoke", *SMOKE_TESTS, environment={"GPUAAS_E2E_SLOT": "1"}),))

BESIDE = 3
"""So many parts run at a time: those with machines wait often, and those without use the cores meanwhile."""
PARTS = (LINT, MACHINES, APPS, UNIT, HTTP, REFERENCE, E2E, SMOKE, SLICES, ALONE)
"""In this order they begin: what tells something soon comes first, then what takes longest."""

ALLOWED_SKIPS = {
    "sdk.tests.test_routes::test_every_route_has_a_method": "the OpenAPI document is not in the SDK; unit runs it",
}
"""The tests that may be skipped in `make test`, each with its reason; any other skip is a failure."""


def named(names: tuple[str, ...]) -> tuple[Part, ...]:
    known = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no part {', '.join(unknown)}: choose from {', '.join(known)}")
    return tuple(part for part in PARTS if not names or part.name in names)
