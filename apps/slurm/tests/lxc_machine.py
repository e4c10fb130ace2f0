"""A slice reached over `lxc exec`: the Machine port for tests of the machine layer alone."""

import asyncio
import os
import shlex
import time
import zlib
from dataclasses import replace
from pathlib import Path

from gpuaas_sdk.machines.base import CommandError, CommandResult, MachineUnreachableError

_STRICT = "set -euo pipefail\n"
_WHOLE = "<end-of-answer>"
_RECEIVED_LESS = 79


async def lxc(*arguments: str, stdin: bytes = b"", timeout: float = 120) -> CommandResult:
    process = await asyncio.create_subprocess_exec(
        "lxc",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin), timeout)
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise MachineUnreachableError(f"lxc {arguments[0]} gave no answer in {timeout} s") from error
    return CommandResult(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


def _receive(path: str, content: bytes) -> str:
    """A piece of bash that writes its standard input there, all of it."""
    return f"cat >{path} && {{ [ $(stat -c %s {path}) -eq {len(content)} ] || exit {_RECEIVED_LESS}; }}"


class LxcMachine:
    """`bundles` maps digests to files on the host."""

    def __init__(self, name: str, address: str, bundles: dict[str, Path]) -> None:
        self._name = name
        self._address = address
        self.bundles = bundles
        self.steps: list[tuple[str, float]] = []

    @property
    def allocation_id(self) -> str:
        return f"alc_{self._name}"

    @property
    def hostname(self) -> str:
        return self._name

    @property
    def address(self) -> str:
        return self._address

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        content = (_STRICT + script).encode()
        # Not on a command line, where `pgrep -f` of the script would find itself.
        length = f"[ $(LC_ALL=C; echo ${{#script}}) -eq {len(content) + 1} ] || exit {_RECEIVED_LESS}"
        inner = f'script=$(cat; printf .); {length}; bash -s <<<"${{script%.}}"'
        return await self._exec(f"bash -c {shlex.quote(inner)}", content, timeout=timeout)

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        started = time.monotonic()
        # Through a file: a step that read its script from standard input could lose the rest of it to a
        # command that reads standard input too.
        path = shlex.quote(f"/run/gpuaas-step-{step}.sh")
        stdin = (_STRICT + script).encode()
        inner = (
            f"umask 077; {_receive(path, stdin)}; systemd-run --wait --pipe --collect --quiet "
            f"--unit=gpuaas-test-{shlex.quote(step)} --service-type=exec bash {path} </dev/null; "
            f"status=$?; rm -f {path}; exit $status"
        )
        result = await self._exec(f"bash -c {shlex.quote(inner)}", stdin, timeout=timeout)
        self.steps.append((step, time.monotonic() - started))
        if not result.ok:
            raise CommandError(f"{step} on {self._name}", result)
        return result

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        data = content.encode() if isinstance(content, str) else content
        quoted = shlex.quote(path)
        script = (
            f"umask 077; {_receive(f'{quoted}.part', data)} && chown {owner}:{group} {quoted}.part && "
            f"chmod {mode:o} {quoted}.part && mv {quoted}.part {quoted}"
        )
        result = await self._exec(f"bash -c {shlex.quote(script)}", data)
        if not result.ok:
            raise CommandError(f"write {path} on {self._name}", result)

    async def _exec(self, command: str, stdin: bytes = b"", timeout: float = 120) -> CommandResult:
        """Now and then `lxc exec` loses what a command reads or says, and calls that success. All that is done here may
        be done twice, so it is, until question and answer were whole."""
        words = f"{command}; status=$?; printf '{_WHOLE}'; exit $status"
        for _ in range(5):
            result = await lxc("exec", self._name, "-T", "--", "bash", "-c", words, stdin=stdin, timeout=timeout)
            whole = result.stdout.endswith(_WHOLE)
            if result.exit_status != _RECEIVED_LESS and (whole or not result.ok):
                break
        return replace(result, stdout=result.stdout.removesuffix(_WHOLE))

    async def deliver(self, digest: str) -> str:
        path = f"/mnt/{digest.replace(':', '-')}.tar"
        if not (await self.read(f"test -e {path}")).ok:
            # Read-only through a device, as the platform does it: no copy.
            source = self.bundles[digest]
            result = await lxc(
                "config", "device", "add", self._name, "bundle", "disk", f"source={source}", f"path={path}",
                "readonly=true",
            )  # fmt: skip
            if not result.ok:
                raise CommandError(f"deliver {digest} to {self._name}", result)
        return path


POOL = os.environ.get("GPUAAS_TEST_POOL", "")
ENVIRONMENT = os.environ.get("GPUAAS_ENVIRONMENT", "tests")
# Two runs beside each other need names and addresses of their own: both follow from the environment's.
_MARK = f"{zlib.crc32(ENVIRONMENT.encode()):08x}"
_RANGE = ".".join(os.environ.get("GPUAAS_SUBNET", "10.87.0.0/16").split(".")[:2]) + ".200"
NETWORK = f"gpst{_MARK}"
SUBNET = f"{_RANGE}.0/24"
GATEWAY = f"{_RANGE}.1/24"
IMAGE = os.environ.get("GPUAAS_TEST_IMAGE", "gpuaas/debian-12")
TAG = f"user.gpuaas.environment=test-slurm-{ENVIRONMENT}"


def machine_name(word: str) -> str:
    return f"slurmt-{_MARK[:4]}-{word}"


def machine_address(number: int) -> str:
    return f"{_RANGE}.{number}"


async def make_environment() -> None:
    """A bridge of the tests' own in the pool that `make apps` gives; what an earlier run left goes first."""
    await remove_environment()
    # Below the bridge, so that nothing leaves the host when the bridge is missing.
    await _ip_route("replace")
    result = await lxc("network", "create", NETWORK, f"ipv4.address={GATEWAY}", "ipv4.nat=false", "ipv6.address=none")
    if not result.ok:
        raise CommandError(f"make the network {NETWORK}", result)


async def remove_environment() -> None:
    listed = await lxc("list", "--format=csv", "--columns=n", TAG)
    for name in listed.stdout.split():
        await remove(name)
    await lxc("network", "delete", NETWORK)
    await _ip_route("delete")


async def _ip_route(verb: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "ip", "route", verb, "unreachable", SUBNET, "metric", "4278", stderr=asyncio.subprocess.DEVNULL
    )
    await process.wait()


async def launch(name: str, *, address: str, gpus: int = 0, cpus: int = 2, memory: str = "2GiB") -> None:
    result = await lxc(
        "launch", IMAGE, name, "-s", POOL, "-n", NETWORK, "-d", f"eth0,ipv4.address={address}",
        "-d", "root,size=4GiB", "-c", f"limits.cpu={cpus}", "-c", f"limits.memory={memory}", "-c", TAG,
    )  # fmt: skip
    if not result.ok:
        raise CommandError(f"launch {name}", result)
    for number in range(gpus):
        await add_gpu(name, number)
    await wait_until_running(name)


async def add_gpu(name: str, number: int) -> None:
    """A stand-in that Slurm takes for one."""
    device = f"nvidia{number}"
    result = await lxc(
        "config", "device", "add", name, device, "unix-char", "source=/dev/null", f"path=/dev/{device}"
    )  # fmt: skip
    if not result.ok:
        raise CommandError(f"add {device} to {name}", result)


async def wait_until_running(name: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        ready = await lxc("exec", name, "-T", "--", "systemctl", "is-system-running", "--wait", timeout=60)
        if ready.stdout.strip() == "running":
            return
        if time.monotonic() > deadline:
            raise CommandError(f"wait for {name} to be running", ready)
        await asyncio.sleep(0.1)


async def stop(name: str, *, force: bool = False) -> None:
    """Cleanly, or at once. A slice that does not run stays as it is."""
    await lxc("stop", name, *(["--force"] if force else ["--timeout=60"]))


async def take_snapshot(name: str, state: str) -> None:
    """Of a slice that was stopped, or has been quiet for a while: what it holds in memory is not kept."""
    result = await lxc("snapshot", name, state)
    if not result.ok:
        raise CommandError(f"take the snapshot {state} of {name}", result)


async def restore_snapshot(name: str, state: str) -> None:
    """Files, limits and devices as they were; the slice boots anew."""
    await stop(name, force=True)
    for command in (("restore", name, state), ("start", name)):
        result = await lxc(*command)
        if not result.ok:
            raise CommandError(f"{command[0]} {name} to {state}", result)
    await wait_until_running(name)


async def remove(name: str) -> None:
    await lxc("delete", "--force", name)


async def read_dpkg_status(name: str) -> str:
    """The status of a slice that was just launched is the status of the image."""
    result = await lxc("exec", name, "-T", "--", "cat", "/var/lib/dpkg/status")
    if not result.ok:
        raise CommandError("read the dpkg status of the image", result)
    return result.stdout
