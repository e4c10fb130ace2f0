"""The pages for app teams say what there is."""

import re
from pathlib import Path

import pytest

import gpuaas_sdk
from gpuaas_contract.problems import Code
from slurm_app.readiness import COVERAGE
from slurm_app.slurm.overrides import ALLOWED, checked_overrides

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTED = ("runtime.", "machines.", "observations", "owned.", "bundles.")
SDK = Path(__file__).parents[2] / "packages" / "sdk" / "src" / "gpuaas_sdk"


def test_the_recovery_guide_says_what_to_do_about_every_code() -> None:
    page = (DOCS / "how-to" / "recover.md").read_text()
    listed = re.findall(r"^\| `([a-z_]+)` \| \S", page.split("## Every code of the API")[1], re.M)
    assert sorted(listed) == sorted(code.value for code in Code)


def test_the_recovery_guide_has_every_code_that_the_runtime_fails_with() -> None:
    source = "".join(path.read_text() for path in (SDK / "runtime").glob("*.py"))
    raised = set(re.findall(r'OperationFailed\(\s*"([a-z_]+)"', source))
    page = (DOCS / "how-to" / "recover.md").read_text()
    assert raised
    assert {code for code in raised if f"| `{code}` |" not in page} == set()


def test_the_pages_for_app_teams_name_all_that_a_controller_is_written_with() -> None:
    pages = "".join(page.read_text() for folder in ("contract", "how-to") for page in (DOCS / folder).glob("*.md"))
    public = re.findall(r"^from \.([\w.]+) import (\w+)", (SDK / "__init__.pyi").read_text(), re.M)
    assert {name for _, name in public} == set(dir(gpuaas_sdk))
    names = {name for module, name in public if module.startswith(DOCUMENTED)}
    assert {name for name in names if not re.search(rf"\b{name}\b", pages)} == set()


@pytest.mark.parametrize("app", ["apps/reference/src", "packages/cli/src/gpuaas_cli/skeleton"])
def test_the_apps_to_learn_from_use_nothing_that_may_change(app: str) -> None:
    public = {"gpuaas_sdk", "gpuaas_sdk.observations", "gpuaas_sdk.testing"}
    promised = (DOCS / "contract" / "versioning.md").read_text()
    assert {name for name in public if f"`{name}`" not in promised} == set()
    sources = "".join(path.read_text() for path in (DOCS.parent / app).rglob("*.py*") if path.suffix != ".pyc")
    assert set(re.findall(r"^from (gpuaas_sdk[.\w]*) import", sources, re.M)) - public == set()


def test_links_between_the_pages_lead_somewhere() -> None:
    broken = []
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(DOCS)}: {target}")
    assert broken == []


def test_every_test_that_a_page_promises_by_is_there() -> None:
    promised = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (DOCS / "slurm" / "promises.md").read_text())
    root = DOCS.parent
    found = {
        (path.name, name)
        for place in ("apps", "packages", "tests")
        for path in (root / place).rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    assert len(promised) >= 15
    assert set(promised) - found == set()


def test_the_slurm_pages_have_every_code_that_the_app_fails_with() -> None:
    app = DOCS.parent / "apps" / "slurm"
    source = "".join(path.read_text() for path in (app / "src").rglob("*.py"))
    raised = set(re.findall(r'(?:RefusedError|NotReadyError|StillBusyError|OperationFailed)\(\s*"([a-z_]+)"', source))
    pages = (DOCS / "slurm" / "operator-guide.md").read_text() + (app / "RUNBOOK.md").read_text()
    assert raised
    assert {code for code in raised if f"`{code}`" not in pages} == set()


def test_the_user_guide_lists_every_setting_with_values_that_are_taken() -> None:
    guide = (DOCS / "slurm" / "user-guide.md").read_text()
    table = guide.partition("## Settings of slurm.conf")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    named = [name for listed, _ in rows for name in listed.split(", ")]
    assert sorted(named) == sorted(ALLOWED)
    for listed, values in rows:
        for name in listed.split(", "):
            for value in re.findall(r"`([^`]+)`", values):
                assert checked_overrides({name: value}) == {name: value}


def test_the_readiness_page_says_what_its_gate_covers() -> None:
    assert (DOCS / "slurm" / "readiness.md").read_text().count(COVERAGE) == 1
