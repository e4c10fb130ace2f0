"""`gpuaas app new` creates an app that lints and passes its own tests. `scripts/test-skeleton` shows the same, with
types, in an empty environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Kind

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
GPUAAS = BIN / "gpuaas"


def gpuaas(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GPUAAS, "app", "new", *words], cwd=cwd, capture_output=True, text=True, check=False)


def passes(cwd: Path, *words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([BIN / words[0], *words[1:]], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}{done.stderr}"


def test_the_skeleton_is_the_app_that_real_machines_have_seen() -> None:
    checked = subprocess.run(
        [ROOT / "scripts" / "make-skeleton", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("slug", ["a", "hello", "a-name-with-28-characters-ab"])
def test_a_new_app_works_as_it_is(tmp_path: Path, slug: str) -> None:
    made = gpuaas(slug, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    app = tmp_path / slug
    tokens = ("__SLUG__", "__TITLE__", "__PROGRAM__", "__PACKAGE__")
    assert not [
        path for path in app.rglob("*") if path.is_file() and any(token in path.read_text() for token in tokens)
    ]
    manifest = Manifest.model_validate(yaml.safe_load((app / "manifest.yaml").read_text()))
    assert manifest.slug == slug
    assert {kind.value for kind in Kind} <= manifest.kinds, "it shows every kind that there is"
    passes(app, "ruff", "check", "--no-cache", ".")
    passes(app, "ruff", "format", "--no-cache", "--check", ".")
    passes(app, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize("slug", ["Hello", "hello--there", "1st", "a" * 29, "hello\n"])
def test_a_name_that_machines_cannot_have_is_refused(tmp_path: Path, slug: str) -> None:
    refused = gpuaas(slug, cwd=tmp_path)
    assert refused.returncode == 2
    assert "small letters" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "mine").write_text("kept")
    refused = gpuaas("hello", cwd=tmp_path)
    assert refused.returncode == 5
    assert [path.name for path in (tmp_path / "hello").iterdir()] == ["mine"]
