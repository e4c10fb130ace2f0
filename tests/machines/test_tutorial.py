"""The tutorial "Write your first app", command for command as it stands there."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.slices import SMALL, make

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "write-your-first-app.md"
MACHINES = ["demo-1", "demo-2"]


@pytest.fixture
def demo(cli: CommandLine, node: str) -> Iterator[None]:
    cli.json("tenant", "create", "demo")
    cli.json("project", "create", "demo", "--tenant", "demo")
    make(cli, *MACHINES, shape=["--project", "demo", *SMALL])
    yield
    for name in MACHINES:
        cli.json("allocation", "release", name, "--project", "demo", "--yes", "--wait")
    # The other tests have one project and name none.
    for account in cli.json("service-account", "list", "--project", "demo"):
        cli.run("service-account", "delete", account["id"], "--yes")
    cli.run("project", "delete", "demo", "--yes")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    where = tmp_path / "wheels"
    words = [str(ROOT / "scripts" / "build-wheels"), str(where), "packages/contract", "packages/sdk"]
    subprocess.run(words, check=True, capture_output=True)
    return where


def test_the_tutorial_works_as_it_is_written(
    stack: Stack, cli: CommandLine, demo: None, wheels: Path, tmp_path: Path
) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) >= 7
    script = "set -euxo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(blocks)
    home = tmp_path / "work"
    home.mkdir()
    environment = {
        **cli.environment,
        "GPUAAS_PROJECT": "demo",
        "WHEELS": str(wheels),
        "PIP_CONSTRAINT": str(constraints(tmp_path)),
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    }
    done = subprocess.run(
        ["bash", "-m", "-c", script],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    log = home / "hello" / "controller.log"
    said = log.read_text()[-3_000:] if log.exists() else "nothing"
    assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-5_000:]}\nthe controller said:\n{said}"
    assert "nothing is left" in done.stdout
    assert '"name":"demo-2"' in done.stdout, "the worker is on the roll"


def constraints(directory: Path) -> Path:
    """The same versions as everywhere."""
    locked = (ROOT / "requirements" / "dev.txt").read_text()
    pins = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^ ;\\\n]+)", locked, re.M)
    path = directory / "constraints.txt"
    path.write_text("".join(f"{name}=={version}\n" for name, version in pins))
    return path
