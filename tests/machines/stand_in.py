"""A container that stands for another host: made and removed by the tests, not by the platform."""

import ipaddress
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuaas_stack.stack import Stack
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
TAG = "user.gpuaas.environment"
PYTHON = Path("/usr/bin/python3.11")
LIBRARIES = Path("/opt/python-libraries")
AGENT = Path("/opt/gpuaas-agent")
# The image is that of slices: this makes a host of it that has never heard of the platform.
PLAIN_HOST = """
rm -rf /etc/ssh/sshd_config.d/10-gpuaas.conf /etc/systemd/system/ssh.service.d /etc/ssh/gpuaas_principals
rm -f /etc/sudoers.d/gpuaas
userdel --remove gpuaas 2>/dev/null
ssh-keygen -q -A
systemctl daemon-reload
systemctl restart ssh
"""
# Everything that a host is by its configuration. Tools keep the file before the last change with a dash.
SNAPSHOT = """
find /etc -type f ! -name '*-' ! -name .pwd.lock ! -name ld.so.cache -exec sha256sum {} +
find /etc /opt/gpuaas /home /var/mail /var/spool -printf '%p %y %m %u %g\\n' 2>/dev/null | grep -v -e '-[ ]'
getent passwd; getent group; sshd -T; ls -A /opt /home /tmp /var/tmp | grep -v systemd-private
ssh-keyscan -T 5 127.0.0.1 2>/dev/null
ssh-keyscan -T 5 -c 127.0.0.1 2>/dev/null
ps -e -o user= | grep -v systemd | sort -u
"""


def lxc(*words: str, stdin: str = "") -> str:
    done = subprocess.run(["lxc", *words], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"lxc {' '.join(words)}: {done.stderr}"
    return done.stdout


def build_agent(directory: Path) -> None:
    """The agent by its wheel, with its dependencies, in an environment of its own."""
    _run([str(ROOT / "scripts" / "install-alone"), str(directory / "venv"), "packages/agent"])
    # What Python needs of the host and the image lacks.
    (directory / "libraries").mkdir()
    for name in ("libexpat.so.1", "libffi.so.8"):
        shutil.copy(Path("/lib/x86_64-linux-gnu") / name, directory / "libraries" / name)


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class StandIn:
    def __init__(self, name: str) -> None:
        self.name = name

    def sh(self, script: str, *, check: bool = True) -> str:
        done = subprocess.run(
            ["lxc", "exec", self.name, "--", "bash", "-s"], input=script, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def push(self, path: str, content: str, mode: str = "0600") -> None:
        lxc("file", "push", "-", f"{self.name}{path}", "--create-dirs", f"--mode={mode}", stdin=content)

    def snapshot(self) -> list[str]:
        return sorted(self.sh(SNAPSHOT, check=False).splitlines())

    def install_agent(self, stack: Stack, runtime: Path) -> None:
        """It runs once it is enrolled."""
        port = stack.settings.api_port
        for name, shown in (("api", port), ("registry", stack.settings.registry_port)):
            where = f"tcp:127.0.0.1:{shown}"
            self.add_device(name, "proxy", "bind=instance", f"listen={where}", f"connect={where}")
        self.add_device("agent", "disk", f"source={runtime / 'venv'}", f"path={AGENT}", "readonly=true")
        self.add_device("libraries", "disk", f"source={runtime / 'libraries'}", f"path={LIBRARIES}", "readonly=true")
        self.add_device("python", "disk", f"source={PYTHON}", f"path={PYTHON}", "readonly=true")
        self.add_device("stdlib", "disk", "source=/usr/lib/python3.11", "path=/usr/lib/python3.11", "readonly=true")
        self.add_device("gpu", "unix-char", "source=/dev/null", "path=/dev/nvidia0")
        settings = {
            "GPUAAS_API_URL": f"http://127.0.0.1:{port}",
            "GPUAAS_AGENT_STATE_DIR": "/var/lib/gpuaas-agent",
            "GPUAAS_ENVIRONMENT": stack.settings.environment,
            "GPUAAS_AGENT_HOSTING": "host",
            "GPUAAS_JOIN_TOKEN_FILE": "/etc/gpuaas/join-token",
            "LD_LIBRARY_PATH": str(LIBRARIES),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.push("/etc/gpuaas/agent.env", "".join(f"{name}={value}\n" for name, value in settings.items()))

    def enrol(self, join_token: str) -> None:
        """As a host that has never been a node."""
        self.push("/etc/gpuaas/join-token", join_token)
        forget = "systemctl stop gpuaas-agent 2>/dev/null; rm -rf /var/lib/gpuaas-agent"
        program = f"LD_LIBRARY_PATH={LIBRARIES} {AGENT}/bin/python -m gpuaas_agent.main"
        self.sh(f"{forget}; {program} install-unit --start")

    def add_device(self, *words: str) -> None:
        lxc("config", "device", "add", self.name, *words)

    def kill_agent(self) -> None:
        self.sh("systemctl kill --signal=KILL --kill-who=main gpuaas-agent")

    def log(self) -> str:
        return self.sh("journalctl --no-pager -u gpuaas-agent | tail -n 60", check=False)


@contextmanager
def stand_in(stack: Stack, name: str, *devices: str, memory: str = "640MiB") -> Iterator[StandIn]:
    """A running host with an sshd of its own; tagged, so that the leak check sees one that was left."""
    environment = stack.settings.environment
    full_name = f"{environment}-{name}"
    config = {TAG: environment, "limits.memory": memory, "limits.cpu": "1", "boot.autostart": "false"}
    flags = [word for key, value in config.items() for word in ("-c", f"{key}={value}")]
    lxc("init", stack.settings.image_alias, full_name, "--no-profiles", "-s", stack.settings.storage_pool, *flags)
    try:
        host = StandIn(full_name)
        for device in devices:
            host.add_device(*device.split())
        lxc("start", full_name)
        wait_until(lambda: "running" in is_up(host) or "degraded" in is_up(host), f"{full_name} has booted")
        host.sh(PLAIN_HOST)
        yield host
    finally:
        lxc("delete", "--force", full_name)


@contextmanager
def external_host(stack: Stack, name: str, *, memory: str = "640MiB") -> Iterator[StandIn]:
    """On a bridge of its own, which the host reaches and nobody else uses: the last network of the environment's
    range, as far as no project of the tests gets."""
    environment = stack.settings.environment
    bridge = f"gpx-{environment}"
    *_, last = ipaddress.ip_network(stack.settings.subnet).subnets(new_prefix=24)
    gateway = f"{next(last.hosts())}/24"
    settings = ["ipv4.nat=false", "ipv6.address=none", f"ipv4.address={gateway}", f"{TAG}={environment}"]
    lxc("network", "create", bridge, *settings)
    try:
        nic = f"eth0 nic nictype=bridged parent={bridge} name=eth0"
        with stand_in(stack, name, nic, memory=memory) as host:
            wait_until(lambda: addresses(host), "the external machine has an address")
            yield host
    finally:
        lxc("network", "delete", bridge)


def make_key(directory: Path) -> tuple[str, str]:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key")], check=True)
    return (directory / "key").read_text(), (directory / "key.pub").read_text()


def is_up(host: StandIn) -> str:
    return host.sh("systemctl is-system-running", check=False)


def addresses(host: StandIn) -> list[str]:
    state = json.loads(lxc("query", f"/1.0/instances/{host.name}/state"))
    found = ((state["network"] or {}).get("eth0") or {}).get("addresses") or []
    return [address["address"] for address in found if address["family"] == "inet"]
