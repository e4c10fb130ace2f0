"""The agent with real slices: create, reach, deliver, kill, recover, delete."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuaas_contract.agent_link import MACHINE_ARTIFACTS_PATH
from gpuaas_contract.ids import ALLOCATION, new_id

from .agent_test_host import ENVIRONMENT, AgentProcess, run
from .agent_test_platform import Platform, digest_of

pytestmark = [
    pytest.mark.machines,
    pytest.mark.xdist_group("agent-machines"),
    pytest.mark.filterwarnings("ignore:EdDSA is deprecated"),
]

Look = Callable[[], list[str]]


def create_spec(allocation_id: str, *, network: int = 1, host: int = 10, gpus: int = 0) -> dict[str, Any]:
    return {
        "kind": "create_slice",
        "allocation_id": allocation_id,
        "hostname": f"web{network}-{host}",
        "shape": {"cpus": 1, "memory_mib": 512, "disk_gib": 3, "gpus": gpus},
        "network": {
            "owner_id": f"prj_{network}",
            "bridge": f"gpat{network}",
            "gateway_cidr": f"10.85.{network}.1/24",
        },
        "address": f"10.85.{network}.{host}",
        "principals": {"gpuaas": ["people"], "root": ["operators"]},
    }


def delete_spec(allocation_id: str) -> dict[str, Any]:
    return {"kind": "delete_slice", "allocation_id": allocation_id}


def name_of(allocation_id: str) -> str:
    return allocation_id.replace("_", "-")


async def inside(allocation_id: str, script: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        ["lxc", "exec", name_of(allocation_id), "--", "bash", "-c", script],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return f"{done.stdout}{done.stderr}".strip()


async def ssh(
    platform: Platform,
    allocation_id: str,
    address: str,
    command: str,
    *,
    principal: str = "people",
    login: str = "gpuaas",
) -> subprocess.CompletedProcess[bytes]:
    """Plain OpenSSH: a user certificate, and a host that must prove itself by its own certificate."""
    directory = platform.authority.directory
    key = directory / f"user-{principal}"
    if not key.exists():
        platform.authority.make_user(principal)
    known = directory / "known_hosts"
    known.write_text(f"@cert-authority * {platform.authority.public}\n")
    options = {
        "UserKnownHostsFile": known,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": allocation_id,
        "HostKeyAlgorithms": "ssh-ed25519-cert-v01@openssh.com",
        "IdentitiesOnly": "yes",
        "CertificateFile": f"{key}-cert.pub",
        "BatchMode": "yes",
    }
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    async with platform.ssh_port(allocation_id, address) as port:
        return await asyncio.to_thread(
            subprocess.run,
            ["ssh", "-F", "none", *flags, "-i", str(key), "-p", str(port), f"{login}@127.0.0.1", command],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )


async def test_life_of_a_slice(platform: Platform, agent: AgentProcess, leftovers: Look, tmp_path: Path) -> None:
    inventory = platform.hellos[0].inventory
    assert inventory.capacity.gpus == 2
    assert "gpuaas/debian-12" in inventory.images
    assert inventory.virtualisation.startswith("lxd ")
    one = new_id(ALLOCATION)
    started = time.monotonic()
    result = await platform.run_task(create_spec(one, gpus=2))
    print(f"create to sshd: {time.monotonic() - started:.2f} s")
    assert result.ok, result.message
    steps = [progress.step for progress in platform.progress]
    assert steps == ["identity", "network", "instance", "files", "start", "ssh"]

    seen = await ssh(platform, one, "10.85.1.10", "hostname -f; nproc; ls /dev/nvidia*; sudo id -un")
    assert seen.stdout.decode().split() == [
        "web1-10.gpuaas.internal",
        "1",
        "/dev/nvidia0",
        "/dev/nvidia1",
        "root",
    ], seen.stderr
    assert (await ssh(platform, one, "10.85.1.10", "true", principal="strangers")).returncode == 255
    assert (await ssh(platform, one, "10.85.1.10", "true", principal="people", login="root")).returncode == 255
    limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max"
    assert await inside(one, limit) == str(512 * 1024**2)
    assert await inside(one, "stat -c %a /etc/ssh/ssh_host_ed25519_key") == "600"

    # Many bytes arrive; that both directions keep them unchanged is checked in test_streams.
    moved = await ssh(platform, one, "10.85.1.10", "head -c 30000000 /dev/zero")
    assert len(moved.stdout) == 30_000_000

    # The same task again finds its work done.
    before = json.loads(run("lxc", "list", name_of(one), "-f", "json"))[0]["created_at"]
    assert (await platform.run_task(create_spec(one, gpus=2))).ok
    assert json.loads(run("lxc", "list", name_of(one), "-f", "json"))[0]["created_at"] == before

    # A GPU belongs to one slice only, and a creation that fails leaves nothing.
    two = new_id(ALLOCATION)
    refused = await platform.run_task(create_spec(two, network=2, gpus=1))
    assert not refused.ok
    assert "cannot give 1 GPUs: the host has 2, of which 0 are free" in refused.message
    assert leftovers() == [name_of(one), "gpat1", "gpat1"]

    # Streams go to this node's own slices only.
    for address, allocation_id in (("10.85.1.1", one), ("10.85.1.10", two), ("127.0.0.1", one)):
        with pytest.raises(PermissionError):
            await platform.open_stream(allocation_id, address)

    content = bytes(range(256)) * 40_000
    digest = digest_of(content)
    platform.artifacts[digest] = content
    deliver = {"kind": "deliver_artifact", "allocation_id": one, "digest": digest, "size": len(content)}
    delivered = await platform.run_task(deliver)
    assert delivered.path == f"{MACHINE_ARTIFACTS_PATH}/{digest.replace(':', '-')}", delivered.message
    seen = await ssh(
        platform, one, "10.85.1.10", f"sha256sum {delivered.path}; grep {MACHINE_ARTIFACTS_PATH} /proc/mounts"
    )
    assert seen.stdout.decode().split()[0] == digest.removeprefix("sha256:")
    assert " ro," in seen.stdout.decode().splitlines()[1]
    assert (await platform.run_task(deliver)).ok

    # A stream ends with its machine.
    stream = await platform.open_stream(one, "10.85.1.10")
    assert (await platform.run_task(delete_spec(one))).ok
    await asyncio.wait_for(stream.wait_closed(), 60)
    assert leftovers() == []
    assert list((tmp_path / "state" / "slices").iterdir()) == []
    assert (await platform.run_task(delete_spec(one))).ok


async def test_projects_reach_neither_each_other_nor_the_host(
    platform: Platform, agent: AgentProcess, leftovers: Look
) -> None:
    mine, mate, other = (new_id(ALLOCATION) for _ in range(3))
    specs = [create_spec(mine), create_spec(mate, host=11), create_spec(other, network=2)]
    results = await asyncio.gather(*(platform.run_task(spec) for spec in specs))
    assert all(result.ok for result in results), results

    knock = "timeout 2 bash -c 'exec 3<>/dev/tcp/{}/{} && head -c 4 <&3' 2>&1 | tail -1"
    assert await inside(mine, knock.format("10.85.1.11", 22)) == "SSH-"
    assert await inside(mine, knock.format("web1-11", 22)) == "SSH-"
    assert "web1-11.gpuaas.internal" in await inside(mine, "getent hosts web1-11")
    assert "Connection refused" in await inside(mine, knock.format("10.85.2.10", 22))
    assert "Connection refused" in await inside(other, knock.format("10.85.1.10", 22))
    # A service of the host, on the gateway of either bridge: this test's own platform listens there.
    hello = await asyncio.start_server(lambda _, writer: writer.write(b"SSH-"), "0.0.0.0", 0)
    port = hello.sockets[0].getsockname()[1]
    for gateway in ("10.85.1.1", "10.85.2.1"):
        assert "Connection refused" in await inside(mine, knock.format(gateway, port))
    hello.close()

    # Names: the own gateway tells those of the own project, over UDP and TCP, and no other gateway tells any.
    assert await inside(mine, resolve("10.85.1.1", "web1-11")) == "10.85.1.11"
    assert await inside(mine, resolve("10.85.1.1", "web1-11", stream=True)) == "10.85.1.11"
    assert await inside(other, resolve("10.85.2.1", "web2-10")) == "10.85.2.10"
    for stream in (False, True):
        assert "nobody" in await inside(mine, resolve("10.85.1.1", "web2-10", stream=stream))
        assert "refused" in await inside(mine, resolve("10.85.2.1", "web2-10", stream=stream))
    # Nor does anything of the host answer by a link-local address.
    link_local = "timeout 3 ping -6 -c1 -W1 ff02::1%eth0 | grep -c 'bytes from' || true"
    assert int(await inside(mine, link_local)) <= 1, "it hears nobody but itself"
    assert await inside(mine, "cat /sys/class/net/eth0/mtu") == "1450"

    # The bridge goes with its last slice, not before.
    assert (await platform.run_task(delete_spec(mine))).ok
    assert await inside(mate, "getent hosts web1-11")
    for allocation_id in (mate, other):
        assert (await platform.run_task(delete_spec(allocation_id))).ok
    assert leftovers() == []


@pytest.mark.parametrize("step", ["identity", "network", "instance", "files", "start", "ssh"])
async def test_killed_at_a_step_converges(platform: Platform, agent: AgentProcess, leftovers: Look, step: str) -> None:
    one = new_id(ALLOCATION)
    task_id = await platform.send_task(create_spec(one, gpus=1))
    await platform.until(lambda: any(found.step == step for found in platform.progress), f"step {step}")
    await agent.end(signal.SIGKILL)
    assert task_id not in platform.results
    agent.start()
    result = await platform.result_of(task_id)
    assert result.ok, result.message
    assert leftovers() == [name_of(one), "gpat1", "gpat1"]
    done = await ssh(platform, one, "10.85.1.10", "true")
    assert done.returncode == 0, done.stderr
    assert (await platform.run_task(delete_spec(one))).ok
    assert leftovers() == []


async def test_deletion_overtakes_creation(platform: Platform, agent: AgentProcess, leftovers: Look) -> None:
    one = new_id(ALLOCATION)
    creation = await platform.send_task(create_spec(one))
    await platform.until(lambda: any(found.step == "instance" for found in platform.progress), "the instance")
    assert (await platform.run_task(delete_spec(one))).ok
    assert not (await platform.result_of(creation)).ok
    assert leftovers() == []


async def test_machines_come_back(platform: Platform, agent: AgentProcess, leftovers: Look) -> None:
    one, two = new_id(ALLOCATION), new_id(ALLOCATION)
    results = await asyncio.gather(platform.run_task(create_spec(one)), platform.run_task(create_spec(two, host=11)))
    assert all(result.ok for result in results), results

    # Stopped with their bridge gone, as after `down`.
    assert await agent.end(signal.SIGTERM) == 0
    run("lxc", "stop", "-f", name_of(one), name_of(two))
    run("ip", "link", "del", "gpat1")
    agent.start()
    await until_ssh_works(platform, one, "10.85.1.10")
    await until_ssh_works(platform, two, "10.85.1.11")

    # The bridge gone under running machines: plugged in again, not restarted.
    boot = await inside(one, "cat /proc/sys/kernel/random/boot_id; stat -c %Y /proc/1")
    run("ip", "link", "del", "gpat1")
    await platform.drop_links()
    await until_ssh_works(platform, one, "10.85.1.10")
    await until_ssh_works(platform, two, "10.85.1.11")
    assert await inside(one, "cat /proc/sys/kernel/random/boot_id; stat -c %Y /proc/1") == boot
    for allocation_id in (one, two):
        assert (await platform.run_task(delete_spec(allocation_id))).ok
    assert leftovers() == []


async def test_a_machine_that_was_switched_off_starts_again(
    platform: Platform, agent: AgentProcess, leftovers: Look
) -> None:
    one = new_id(ALLOCATION)
    platform.certificates_fail = 2
    result = await platform.run_task(create_spec(one))
    assert result.ok, result.message
    assert "wait" in [progress.step for progress in platform.progress], "an outage of the platform is waited out"
    run("lxc", "stop", "-f", name_of(one))
    with pytest.raises(PermissionError, match="is stopped"):
        await platform.open_stream(one, "10.85.1.10")
    await platform.drop_links()
    await until_ssh_works(platform, one, "10.85.1.10")
    assert (await platform.run_task(delete_spec(one))).ok
    assert leftovers() == []


def resolve(server: str, name: str, *, stream: bool = False) -> str:
    """A command that asks one name server for an address. The machine's own tools ask only that of its project."""
    labels = "".join(f"{len(part):02x}{part.encode().hex()}" for part in [name, *["gpuaas", "internal"]])
    question = f"{'0007 0100 0001 0000 0000 0000'.replace(' ', '')}{labels}00 0001 0001".replace(" ", "")
    length = f"{len(question) // 2:04x}" if stream else ""
    program = f"""
use IO::Socket::INET;
$SIG{{ALRM}} = sub {{ print "no answer"; exit }};
alarm 5;
my $sock = IO::Socket::INET->new(PeerAddr => "{server}", PeerPort => 53, Proto => "{"tcp" if stream else "udp"}")
    or do {{ print "$!"; exit }};
syswrite($sock, pack("H*", "{length}{question}"));
sysread($sock, my $answer, 600) or do {{ print "$!"; exit }};
$answer = substr($answer, {2 if stream else 0});
print unpack("n", substr($answer, 6, 2)) ? join(".", unpack("C4", substr($answer, -4))) : "nobody";
"""
    return f"perl -e '{program}'"


async def test_what_is_lost_of_the_networks_comes_back(
    platform: Platform, agent: AgentProcess, leftovers: Look
) -> None:
    mine, other = new_id(ALLOCATION), new_id(ALLOCATION)
    results = await asyncio.gather(
        platform.run_task(create_spec(mine)), platform.run_task(create_spec(other, network=2))
    )
    assert all(result.ok for result in results), results
    assert platform.conditions == []

    # Our rules only: what else the host has is not ours to flush.
    run("nft", f"delete table inet gpuaas-{ENVIRONMENT}")
    await platform.until(lambda: platform.conditions[-1:] == [[]], "the rules to be back")
    assert platform.conditions[0] == [
        "the firewall of this node is not as wanted: the table is missing; its agent puts it back"
    ]
    assert "refused" in await inside(mine, resolve("10.85.2.1", "web2-10"))
    assert await inside(mine, resolve("10.85.1.1", "web1-10")) == "10.85.1.10"

    # A name server dies, and one that LXD has lost holds the address of the other bridge.
    dead, lost = (Path(f"/var/lib/lxd/networks/{bridge}/dnsmasq.pid") for bridge in ("gpat1", "gpat2"))
    before = lost.read_text()
    os.kill(int(next(line for line in dead.read_text().splitlines() if line.startswith("pid:")).split()[1]), 9)
    lost.unlink()
    await platform.until(lambda: len(platform.conditions) > 2, "the agent to notice")
    await platform.until(lambda: platform.conditions[-1] == [], "the name servers to be back")
    assert {words for found in platform.conditions[2:] for words in found} == {
        f"bridge {bridge}: its name server does not run; its agent brings it back" for bridge in ("gpat1", "gpat2")
    }
    assert lost.read_text() != before
    assert await inside(mine, resolve("10.85.1.1", "web1-10")) == "10.85.1.10"
    assert await inside(other, resolve("10.85.2.1", "web2-10")) == "10.85.2.10"

    # The rules of a bridge go with it, and with the agent they stay.
    assert (await platform.run_task(delete_spec(other))).ok
    assert "gpat2" not in run("nft", "list", "table", "inet", f"gpuaas-{ENVIRONMENT}")
    await agent.end(signal.SIGKILL)
    assert "gpat1" in run("nft", "list", "table", "inet", f"gpuaas-{ENVIRONMENT}")
    agent.start()
    assert (await platform.run_task(delete_spec(mine))).ok
    assert leftovers() == []


async def until_ssh_works(platform: Platform, allocation_id: str, address: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        done = await ssh(platform, allocation_id, address, "true")
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, f"no ssh to {allocation_id}: {done.stderr.decode()}"
        await asyncio.sleep(0.3)
