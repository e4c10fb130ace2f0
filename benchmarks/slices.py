"""From asking for a machine to its sshd answering, against `lxc launch` of the same image and waiting for its sshd.

The platform says `active` only after sshd answered, so what is measured on its side includes saying so."""

import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.services import admin_credentials

from gpuaas_agent.machine_port import wait_for_sshd
from gpuaas_contract.allocations import AllocationStatus, Shape
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack import platform_services
from gpuaas_stack.progress import Progress
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack

ROUNDS = 3
COUNTS = (1, 8)
GOAL = 1.3
SHAPE = Shape(cpus=1, memory_mib=512, disk_gib=2)
FLOOR_IMAGE = "gpuaas/bench-floor"
BRIDGE = "gpb-floor"
FLOORS = [f"floor-{number}" for number in range(max(COUNTS))]


@contextmanager
def own_machines(*, name: str = "bench", first_port: int = 8580, subnet: str = "10.95.0.0/16") -> Iterator[Stack]:
    settings = Settings(
        state_dir=Path(f"/var/lib/gpuaas-{name}"),
        environment=name,
        api_port=first_port,
        postgres_port=first_port + 1,
        openbao_port=first_port + 2,
        openbao_cluster_port=first_port + 3,
        registry_port=first_port + 4,
        subnet=subnet,
        pool_size="20GiB",
        app_dirs=(),
    )
    stack = Stack(settings, Progress())
    stack.reset()
    try:
        stack.up()
        yield stack
    finally:
        stack.reset()
        shutil.rmtree(settings.state_dir, ignore_errors=True)


def lxc(*words: str) -> str:
    done = subprocess.run(["lxc", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(f"lxc {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def floor_gateway(settings: Settings) -> str:
    """Outside of the platform's range, which its firewall closes for bridges that are not its own."""
    return f"172.30.{settings.subnet.network_address.packed[1]}.1/24"


def delete_instances(names: Iterable[str]) -> None:
    """One by one: `lxc delete` deletes none of them where one is not there."""
    for name in names:
        subprocess.run(["lxc", "delete", "--force", name], capture_output=True)


class Floor:
    """Measure LXD by itself: the same image and limits, a bridge of its own, host keys in the image already."""

    def __init__(self, settings: Settings) -> None:
        self._pool = settings.storage_pool
        self.remove()
        lxc("network", "create", BRIDGE, f"ipv4.address={floor_gateway(settings)}", "ipv6.address=none")
        lxc("init", settings.image_alias, FLOORS[0], "-s", self._pool, "-n", BRIDGE)
        with tempfile.TemporaryDirectory() as directory:
            key = Path(directory) / "key"
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
            subprocess.run(keygen, check=True)
            sign = ["ssh-keygen", "-q", "-s", str(key), "-h", "-I", "floor", f"{key}.pub"]
            subprocess.run(sign, check=True)
            etc = f"{FLOORS[0]}/etc/ssh"
            lxc("file", "push", "--uid=0", "--gid=0", "--mode=0600", str(key), f"{etc}/ssh_host_ed25519_key")
            for file, name in (("key-cert.pub", "ssh_host_ed25519_key-cert.pub"), ("key.pub", "gpuaas_user_ca.pub")):
                lxc("file", "push", "--uid=0", "--gid=0", "--mode=0644", f"{directory}/{file}", f"{etc}/{name}")
        lxc("publish", FLOORS[0], "--alias", FLOOR_IMAGE, "--compression=none")
        lxc("delete", FLOORS[0])
        # As the platform's image was before the first measured machine: unpacked in the pool.
        lxc("init", FLOOR_IMAGE, FLOORS[0], "-s", self._pool, "-n", BRIDGE)
        lxc("delete", FLOORS[0])

    async def measure(self, count: int) -> float:
        names = FLOORS[:count]
        started = time.perf_counter()
        await asyncio.gather(*(self._launch(name) for name in names))
        took = time.perf_counter() - started
        lxc("delete", "--force", *names)
        return took

    async def _launch(self, name: str) -> None:
        limits = ["-c", "limits.cpu=1", "-c", "limits.memory=512MiB", "-d", "root,size=2GiB"]
        words = ["launch", FLOOR_IMAGE, name, "-s", self._pool, "-n", BRIDGE]
        await asyncio.to_thread(lxc, *words, *limits)
        address = await asyncio.to_thread(self._address, name)
        await wait_for_sshd(BRIDGE, address, timeout=60)

    @staticmethod
    def _address(name: str) -> str:
        while not (address := lxc("list", f"^{name}$", "-c", "4", "--format", "csv").split(" ")[0].strip()):
            time.sleep(0.03)
        return address

    @staticmethod
    def remove() -> None:
        """Also what a run that was killed left. It has no tag: the agent would take the bridge for an unused one."""
        delete_instances(FLOORS)
        for words in (["image", "delete", FLOOR_IMAGE], ["network", "delete", BRIDGE]):
            subprocess.run(["lxc", *words], capture_output=True)


async def measure_platform(client: GpuaasClient, project_id: str, count: int, turn: str) -> float:
    started = time.perf_counter()
    names = [f"m{turn}-{number}" for number in range(count)]
    made = [client.allocations.create(project_id, name, shape=SHAPE) for name in names]
    ids = [allocation.id for allocation in await asyncio.gather(*made)]
    await asyncio.gather(*(until(client, id, AllocationStatus.ACTIVE) for id in ids))
    took = time.perf_counter() - started
    await asyncio.gather(*(client.allocations.release(id) for id in ids))
    await asyncio.gather(*(until(client, id, AllocationStatus.RELEASED) for id in ids))
    return took


async def until(client: GpuaasClient, allocation_id: str, status: AllocationStatus) -> None:
    while (found := await client.allocations.get(allocation_id)).status != status:
        if found.status in (AllocationStatus.FAILED, AllocationStatus.RELEASE_FAILED):
            raise RuntimeError(f"{found.name} is {found.status}: {found.reason}")
        await asyncio.sleep(0.05)


async def compare(stack: Stack) -> None:
    async with GpuaasClient(stack.settings.api_url, PasswordCredentials(*admin_credentials(stack.settings))) as client:
        token = await client.join_tokens.create("bench")
        platform_services.write_join_token(stack.settings, token.token)
        await asyncio.to_thread(stack.start_agent)
        tenant = await client.tenants.create("bench")
        project = await client.projects.create(tenant.id, "bench")
        floor = await asyncio.to_thread(Floor, stack.settings)
        try:
            print(f"\n{'asked for until sshd answers':32}{'ours s':>8}{'lxc s':>8}{'times':>7}  goal: at most {GOAL}")
            for count in COUNTS:
                ours, theirs = [], []
                for turn in range(ROUNDS):
                    theirs.append(await floor.measure(count))
                    ours.append(await measure_platform(client, project.id, count, f"{count}{turn}"))
                own, other = statistics.median(ours), statistics.median(theirs)
                what = "one machine" if count == 1 else f"{count} machines at once"
                print(f"{what:32}{own:8.2f}{other:8.2f}{own / other:7.2f}", flush=True)
        finally:
            await asyncio.to_thread(floor.remove)


if __name__ == "__main__":
    with own_machines() as own:
        asyncio.run(compare(own))
