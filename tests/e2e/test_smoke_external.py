"""The smoke suite on a machine that is not the platform's: known by address, host key and a stored credential.

No agent brings files to it and no observer looks at it: the controller goes there itself, with all that it needs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.e2e.recorder import Recorder
from tests.e2e.test_smoke import NAME, Smoke
from tests.machines.stand_in import StandIn, addresses, external_host, make_key

# What an operator has to give it, beside the key: the user that people use on all machines, who may become root.
PREPARE = """
useradd --create-home --uid 10000 --shell /bin/bash gpuaas
install -d -o gpuaas -m 700 /home/gpuaas/.ssh
install -o gpuaas -m 600 /root/.ssh/authorized_keys /home/gpuaas/.ssh/
echo 'gpuaas ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/gpuaas
"""


@pytest.fixture
def lab(stack: Stack) -> Iterator[StandIn]:
    with external_host(stack, "lab", memory="1536MiB") as host:
        yield host


@pytest.fixture
def controller_with_a_route(stack: Stack, controller_account: Path, tmp_path: Path) -> Iterator[None]:
    """Run the controller as its team does with external machines: it reaches them and the registry."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GPUAAS_API_URL": stack.settings.api_url,
        "GPUAAS_SERVICE_ACCOUNT_FILE": str(controller_account),
    }
    with (tmp_path / "log").open("wb") as log:
        program = Path(sys.executable).parent / "slurm-app"
        process = subprocess.Popen([str(program), "run"], env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)
            print((tmp_path / "log").read_text()[-8_000:])


@pytest.mark.timeout(1_800)
def test_smoke_on_an_external_machine(
    cli: CommandLine, project: str, lab: StandIn, controller_with_a_route: None, recorder: Recorder, tmp_path: Path
) -> None:
    smoke = Smoke(cli, {}, recorder)
    with smoke.step("make the machine known, with a stored credential"):
        lab.push("/root/.ssh/authorized_keys", make_key(tmp_path)[1])
        lab.sh(PREPARE)
        before = lab.snapshot()
        credential = cli.json("credential", "create", "lab", "--private-key", str(tmp_path / "key"))
        host_key = lab.sh("cat /etc/ssh/ssh_host_ed25519_key.pub").strip()
        where = ["--external-address", addresses(lab)[0], "--external-host-key", host_key]
        sizes = ["--cpus", "1", "--memory-mib", "1536"]
        words = ["--name", lab.name, *sizes, *where, "--external-credential", credential["id"]]
        cli.run("allocation", "create", *words)
    with smoke.step("deploy, controller and worker on it"):
        instance = smoke.deploy(f"controller={lab.name}", f"worker={lab.name}")
        assert instance["mode"] == "multi_node"
    with smoke.step("access: every command as printed, with a key of one's own"):
        (tmp_path / "known_hosts").write_text(f"{addresses(lab)[0]} {host_key}\n")
        own = (
            f"ssh -i {tmp_path / 'key'} -o UserKnownHostsFile={tmp_path / 'known_hosts'} -o StrictHostKeyChecking=yes "
        )
        lines = [note["command"] for note in instance["access_notes"] if note["command"]]
        assert all(line.startswith("ssh ") for line in lines), lines
        for line in lines:
            cli.paste(line.replace("ssh ", own, 1))
    with smoke.step("recover"):
        lab.sh("systemctl disable --now slurmd; scontrol delete nodename=$(hostname)")
        smoke.do("recover", f"worker={lab.name}")
        assert "idle" in lab.sh("sinfo --noheader --format=%T")
    with smoke.step("decommission with a key that opens nothing says what it could not see"):
        lab.sh("mv /root/.ssh/authorized_keys /root/.ssh/aside")
        assert cli.call("instance", "decommission", NAME, "--yes", "--wait").returncode == 7
        unseen = json.loads(cli.call("instance", "receipt", NAME, "-o", "json").stdout)
        assert unseen["ok"] is False
        checks = [check for member in unseen["members"] for check in member["checks"]]
        assert checks
        assert all(check["ok"] is None and "refused the stored key" in check["found"] for check in checks)
        lab.sh("mv /root/.ssh/aside /root/.ssh/authorized_keys")
    with smoke.step("decommission"):
        cli.run("instance", "decommission", NAME, "--yes", "--wait")
        receipt = cli.json("instance", "receipt", NAME)
        assert receipt["ok"] is True, json.dumps(receipt)
        lab.sh("rm -f /home/gpuaas/slurm-*.out")
        assert lab.snapshot() == before
    cli.run("allocation", "release", lab.name, "--yes", "--wait")
