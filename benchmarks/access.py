"""`gpuaas ssh host true` against plain `ssh host true` with a ready key, and certificates against bare signatures.

Both logins end in the same sshd; the plain one goes straight to its address with a certificate that lies ready."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from tests.support.services import admin_credentials, openbao_of

from benchmarks.slices import SHAPE, own_machines
from gpuaas_cli.commands.ssh import ssh_arguments
from gpuaas_cli.machine_access import make_key
from gpuaas_contract.allocations import Allocation, AllocationStatus
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack import platform_services
from gpuaas_stack.stack import Stack

ROUNDS = 7
GOAL_SECONDS = 0.5
CLIENTS = 8
SECONDS = 5.0


async def make_machine(stack: Stack, client: GpuaasClient) -> Allocation:
    join = await client.join_tokens.create("bench")
    platform_services.write_join_token(stack.settings, join.token)
    stack.start_agent()
    tenant = await client.tenants.create("bench")
    project = await client.projects.create(tenant.id, "bench")
    made = await client.allocations.create(project.id, "one", shape=SHAPE)
    while made.status != AllocationStatus.ACTIVE:
        await asyncio.sleep(0.1)
        made = await client.allocations.get(made.id)
    return made


def timed(words: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(words, env=environment, check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - started


async def compare_logins(stack: Stack, client: GpuaasClient, machine: Allocation, home: Path) -> None:
    public_key = make_key(home)
    ready = await client.allocations.access(machine.id, public_key, lifetime_seconds=900)
    plain = [*ssh_arguments(home, ready, machine.id, [], direct=True), "true"]
    programs = Path(sys.executable).parent
    environment = {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}
    email, password = admin_credentials(stack.settings)
    login = [str(programs / "gpuaas"), "login", "--api-url", stack.settings.api_url, "--email", email]
    await asyncio.to_thread(
        subprocess.run, [*login, "--password-stdin"], env=environment, input=password, text=True, check=True
    )
    ours = [str(programs / "gpuaas"), "ssh", "one", "--", "true"]
    found: dict[str, list[float]] = {"ssh": [], "gpuaas ssh": []}
    for _ in range(ROUNDS):
        found["ssh"].append(await asyncio.to_thread(timed, plain, environment))
        found["gpuaas ssh"].append(await asyncio.to_thread(timed, ours, environment))
    bare, whole = (statistics.median(found[name]) for name in ("ssh", "gpuaas ssh"))
    print(
        f"login, median of {ROUNDS}: plain ssh {bare * 1000:.0f} ms, gpuaas ssh {whole * 1000:.0f} ms: "
        f"{whole / bare:.2f} times, {(whole - bare) * 1000:.0f} ms extra (goal: under {GOAL_SECONDS * 1000:.0f} ms)"
    )


async def rate(call: Callable[[], Awaitable[object]]) -> float:
    """Calls per second, by several clients at once."""
    done = 0
    ends = time.perf_counter() + SECONDS

    async def repeat() -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await call()
            done += 1

    await asyncio.gather(*(repeat() for _ in range(CLIENTS)))
    return done / SECONDS


async def compare_signatures(stack: Stack, client: GpuaasClient, machine: Allocation, home: Path) -> None:
    public_key = (home / "key.pub").read_text().strip()
    openbao = openbao_of(stack.settings)
    token = stack.settings.vault_token_file or openbao.token_file
    headers = {"X-Vault-Token": Path(token).read_text().strip()}  # noqa: ASYNC240 - a few bytes
    owner = machine.project_id
    body = {"public_key": public_key, "cert_type": "user", "valid_principals": "bench", "ttl": "300s"}
    async with httpx.AsyncClient(base_url=openbao.address, headers=headers, trust_env=False) as vault:

        async def bare() -> None:
            (await vault.post(f"/v1/ssh/{owner}/sign/user", json=body)).raise_for_status()

        async def ours() -> None:
            await client.allocations.access(machine.id, public_key)

        floor, made = [], []
        for _ in range(3):
            floor.append(await rate(bare))
            made.append(await rate(ours))
    low, high = statistics.median(made), statistics.median(floor)
    print(
        f"certificates with {CLIENTS} clients, median of 3: {low:.0f}/s, bare OpenBao signatures {high:.0f}/s: "
        f"{low / high:.2f} of them"
    )


async def compare(stack: Stack) -> None:
    credentials = PasswordCredentials(*admin_credentials(stack.settings))
    async with GpuaasClient(stack.settings.api_url, credentials) as client:
        machine = await make_machine(stack, client)
        with tempfile.TemporaryDirectory() as home:
            await compare_logins(stack, client, machine, Path(home))
            await compare_signatures(stack, client, machine, Path(home))


if __name__ == "__main__":
    with own_machines(name="bench-access", first_port=8620, subnet="10.102.0.0/16") as own:
        asyncio.run(compare(own))
