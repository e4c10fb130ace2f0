"""The conformance kit passes the Slurm app: its plain run in `make test`, all of its scenarios in `make soak`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.conftest import APPS
from tests.support.chance import SEED

KIT = Path(sys.executable).parent / "gpuaas-conformance"
SOAK = "GPUAAS_SOAK" in os.environ
SCENARIOS = [] if SOAK else ["--scenario", "plain"]
pytestmark = pytest.mark.timeout(3600 if SOAK else 600)
NOT_SEEN = {"secret-rotated"}
"""A munge key must change on all machines at once; the app has no operation for that."""


def test_the_slurm_app_keeps_every_rule(stack: Stack, vacated: None, published: str, tmp_path: Path) -> None:
    settings, log = stack.settings, tmp_path / "log"
    where = ["--api-url", settings.api_url, "--password-file", str(settings.admin_password_file), "--log", str(log)]
    which = ["--app", str(APPS / published), "--project", "research", "--machines", "one,two", "--seed", str(SEED)]
    # Programs of the app's pack are beside the kit.
    environment = {**os.environ, "PATH": f"{KIT.parent}:{os.environ['PATH']}"}
    command: list[str | Path] = [KIT, "run", "--json", *where, *which, *SCENARIOS]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    said = f"{done.stdout}\n{log.read_text()[-5_000:] if log.exists() else ''}"
    assert done.returncode == 0, said
    verdicts = {check["check"]: check["verdict"] for check in json.loads(done.stdout)["checks"]}
    assert verdicts == {name: "not seen" if name in NOT_SEEN else "kept" for name in verdicts}, said
