"""Slices straight from LXD, and on them the cluster by a bare script or by Ansible.

Both get the bundle as a read-only directory before the clock starts, which is the quickest way that there is. The
script is run with `lxc exec`, without SSH. Ansible logs in over SSH as root, with its own defaults (which keep
connections open); Python and what its apt module needs are in its slices before the clock starts."""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.slices import delete_instances, floor_gateway, lxc
from gpuaas_contract.allocations import Shape
from gpuaas_sdk.bundles.building import Apt, find_sources
from gpuaas_stack.settings import Settings
from slurm_app.slurm import config, mariadb, roles, script

BRIDGE = "gpb-slurm"
IMAGE = "gpuaas/bench-ansible"
NAMES = ("floor-a", "floor-b", "floor-c")
BOOT_SECONDS = 180
CLUSTER, ACCOUNT, USER = "bench", "bench", "gpuaas"
HERE = Path(__file__).parent
ANSIBLE = HERE.parents[1] / "build" / "ansible"


class Floor:
    def __init__(self, settings: Settings, shape: Shape, bundle: Path, dpkg_status: Path, scratch: Path) -> None:
        self._settings = settings
        self._shape = shape
        self._scratch = scratch
        self.files = scratch / "files"
        self.files.mkdir()
        # Seen by root of a slice, who is nobody on the host.
        scratch.chmod(0o755)
        shutil.copyfile(bundle, self.files / "bundle.tar")
        shutil.copyfile(HERE / "machine.sh", self.files / "machine.sh")
        gateway = floor_gateway(settings)
        lxc("network", "create", BRIDGE, f"ipv4.address={gateway}", "ipv4.nat=false", "ipv6.address=none")
        self._make_ansible(dpkg_status)

    @staticmethod
    def remove() -> None:
        """Also what a run that was killed left."""
        delete_instances(NAMES)
        for words in (["image", "delete", IMAGE], ["network", "delete", BRIDGE]):
            subprocess.run(["lxc", *words], capture_output=True)

    # Slices

    async def launch(self, count: int, image: str) -> list[str]:
        """Running, with an address each, and the files of this cluster in /bench; the first is the controller's."""
        names = list(NAMES[:count])
        addresses = await asyncio.gather(*(asyncio.to_thread(self._launch, name, image) for name in names))
        self._write_configuration(names[0], addresses[0])
        return addresses

    def _launch(self, name: str, image: str) -> str:
        limits = ["-c", f"limits.cpu={self._shape.cpus}", "-c", f"limits.memory={self._shape.memory_mib}MiB"]
        disk = ["-d", f"root,size={self._shape.disk_gib}GiB"]
        lxc("init", image, name, "-s", self._settings.storage_pool, "-n", BRIDGE, *limits, *disk)
        lxc("config", "device", "add", name, "bench", "disk", f"source={self.files}", "path=/bench", "readonly=true")
        lxc("start", name)
        deadline = time.monotonic() + BOOT_SECONDS
        while not (address := lxc("list", f"^{name}$", "-c", "4", "--format", "csv").split(" ")[0].strip()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} has no address after {BOOT_SECONDS} s: lxc info {name} --show-log")
            time.sleep(0.05)
        lxc("exec", name, "--", "systemctl", "is-system-running", "--wait")
        return address

    def _write_configuration(self, host: str, address: str) -> None:
        """By the app's own renderers: the same configuration."""
        tracking = config.LINUXPROC
        shown = config.render_slurm_conf(
            cluster_name=CLUSTER, partition="main", host=host, address=address, tracking=tracking
        )
        files = {
            "slurm.conf": shown,
            "plugstack.conf": config.render_plugstack_conf(),
            "gres.conf": f"{config.HEADER}Include {config.MACHINE_GRES_CONF}\n",
            "gres.machine.conf": config.HEADER,
            "slurmdbd.conf": config.render_slurmdbd_conf(),
            "slurm-mariadb.cnf": mariadb.render_configuration(),
            "slurm-mariadb.service": mariadb.render_unit(),
            "initialise-database": mariadb.render_initialisation(mariadb.DATA),
            "slurmctld.drop-in": script.restart_policy(["slurmdbd.service"]),
            "slurmdbd.drop-in": script.restart_policy(["slurm-mariadb.service"]),
            "slurmd.drop-in": SLURMD_DROP_IN,
        }
        for name, content in files.items():
            (self.files / name).write_text(content)
        (self.files / "munge.key").write_bytes(secrets.token_bytes(128))

    # The bare script

    async def bare_deploy(self, addresses: list[str]) -> None:
        one, two = NAMES[:2]

        async def controller() -> None:
            await self.on(one, "install_packages", "controller", "worker")
            await self.on(one, "start_controller", CLUSTER, ACCOUNT, USER)

        await asyncio.gather(controller(), self.on(two, "install_packages", "worker"))
        await asyncio.gather(*(self.on(name, "start_worker", addresses[0]) for name in (one, two)))
        await self.on(one, "run_first_job", USER, one, two)

    async def bare_add(self, addresses: list[str]) -> None:
        one, _, three = NAMES
        await self.on(three, "install_packages", "worker")
        await self.on(three, "start_worker", addresses[0])
        await self.on(one, "run_first_job", USER, three)

    async def bare_remove(self) -> None:
        one, _, three = NAMES
        await self.on(one, "drain_node", three)
        await self.on(three, "remove_all")
        await self.on(one, "forget_node", three)

    async def bare_decommission(self) -> None:
        await asyncio.gather(*(self.on(name, "remove_all") for name in NAMES[:2]))

    @staticmethod
    async def on(machine: str, *words: str) -> str:
        return await asyncio.to_thread(lxc, "exec", machine, "--", "bash", "/bench/machine.sh", *words)

    # Ansible

    def _make_ansible(self, dpkg_status: Path) -> None:
        """Ansible from PyPI in an environment of its own, a key to log in with, and an image that has Python."""
        if not (ANSIBLE / "bin" / "ansible-playbook").exists():
            subprocess.run([sys.executable, "-m", "venv", str(ANSIBLE)], check=True)
            subprocess.run([str(ANSIBLE / "bin" / "pip"), "install", "--quiet", "ansible-core"], check=True)
        self._key = self._scratch / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._key)], check=True)
        apt = Apt(self._scratch / "apt", dpkg_status, find_sources())
        apt.run("update")
        packages = self.files / "python"
        packages.mkdir()
        for deb in apt.fetch(["python3", "python3-apt"]):
            shutil.copy(deb, packages)
        (self.files / "key.pub").write_text(Path(f"{self._key}.pub").read_text())
        self._launch(NAMES[0], self._settings.image_alias)
        lxc("exec", NAMES[0], "--", "bash", "-ec", PREPARE_FOR_ANSIBLE)
        lxc("config", "device", "remove", NAMES[0], "bench")
        lxc("stop", NAMES[0])
        lxc("publish", NAMES[0], "--alias", IMAGE, "--compression=none")
        lxc("delete", NAMES[0])
        shutil.rmtree(packages)
        # As the other image was before the first measured machine: unpacked in the pool.
        lxc("init", IMAGE, NAMES[0], "-s", self._settings.storage_pool, "-n", BRIDGE)
        lxc("delete", NAMES[0])

    async def ansible_deploy(self, addresses: list[str]) -> None:
        both = set(roles.PACKAGES[roles.Role.CONTROLLER]) | set(roles.PACKAGES[roles.Role.WORKER])
        hosts = {
            NAMES[0]: {"ansible_host": addresses[0], "packages": sorted(both)},
            NAMES[1]: {"ansible_host": addresses[1], "packages": sorted(roles.PACKAGES[roles.Role.WORKER])},
        }
        shared = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self._key),
            "ansible_python_interpreter": "/usr/bin/python3",
            "files": str(self.files),
            "server": addresses[0],
            "cluster": CLUSTER,
            "account": ACCOUNT,
            "login": USER,
        }
        inventory = {
            "all": {
                "vars": shared,
                "hosts": hosts,
                "children": {
                    "controller": {"hosts": {NAMES[0]: None}},
                    "workers": {"hosts": dict.fromkeys(hosts)},
                },
            }
        }
        file = self._scratch / "inventory.json"
        file.write_text(json.dumps(inventory))
        environment = {**os.environ, "ANSIBLE_HOST_KEY_CHECKING": "False", "ANSIBLE_HOME": str(self._scratch / "home")}
        command = [str(ANSIBLE / "bin" / "ansible-playbook"), "-i", str(file), str(HERE / "playbook.yml")]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"ansible-playbook ended with {process.returncode}:\n{said.decode()[-3_000:]}")


SLURMD_DROP_IN = """\
[Unit]
ConditionPathExists=
StartLimitIntervalSec=0
[Service]
ExecStart=
ExecStart=/usr/sbin/slurmd -D -s --conf-server @server@ -Z --conf "@conf@"
Restart=on-failure
RestartSec=1
"""
PREPARE_FOR_ANSIBLE = """
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -y -o APT::Sandbox::User=root -o DPkg::Use-Pty=0 install /bench/python/*.deb >/dev/null
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
ssh-keygen -q -s /etc/ssh/ssh_host_ed25519_key -h -I bench /etc/ssh/ssh_host_ed25519_key.pub
cp /etc/ssh/ssh_host_ed25519_key.pub /etc/ssh/gpuaas_user_ca.pub
mkdir -p /root/.ssh
install -m 0600 /bench/key.pub /root/.ssh/authorized_keys
# The first word of sshd's configuration counts.
printf 'AuthorizedKeysFile /root/.ssh/authorized_keys\\n' >/etc/ssh/sshd_config.d/05-bench.conf
"""


def scratch_directory() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuaas-bench-slurm-")
