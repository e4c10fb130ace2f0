"""`scripts/build-wheels`: the same bytes wherever and whenever, and all wheels or none."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(out: Path, *packages: str | Path, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    words = [ROOT / "scripts" / "build-wheels", out, *packages]
    return subprocess.run(words, capture_output=True, text=True, check=False, umask=umask)


def test_a_wheel_is_the_same_from_another_place_and_time(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "packages" / "contract", copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    assert build(tmp_path / "one", "packages/contract").returncode == 0
    assert build(tmp_path / "two", copy, umask=0o077).returncode == 0
    (one,), (two,) = ([*(tmp_path / name).glob("*.whl")] for name in ("one", "two"))
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_an_older_wheel_goes_and_that_of_another_package_stays(tmp_path: Path) -> None:
    for name in ("gpuaas_contract-0.0.1-py3-none-any.whl", "gpuaas_contract_more-1-py3-none-any.whl"):
        (tmp_path / name).touch()
    assert build(tmp_path, "packages/contract").returncode == 0
    left = {path.name.split("-")[0]: path.name for path in tmp_path.glob("*.whl")}
    assert left.keys() == {"gpuaas_contract", "gpuaas_contract_more"}
    assert left["gpuaas_contract"] != "gpuaas_contract-0.0.1-py3-none-any.whl"


def test_what_is_no_package_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    refused = build(tmp_path / "out", "packages/contract", "packages/no-such-thing")
    assert (refused.returncode, "it has no pyproject.toml" in refused.stderr) == (2, True)
    assert [*(tmp_path / "out").glob("*.whl")] == []
    assert build(tmp_path / "out").returncode == 2
