"""Leases on a real machine: worth nothing after their end, and an observer's never more than a look."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from gpuaas_contract.access import OBSERVER_LOGIN, AccessGrant
from gpuaas_contract.identity import Role
from gpuaas_contract.operations import Claim
from gpuaas_sdk import MachineUnreachableError, NotObservableError, OperationContext, read_facts
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ApiError, LeaseLostError
from gpuaas_sdk.machines.connection import MachineConnection, connect_over, trusted_hosts
from gpuaas_sdk.machines.ssh import SshMachineAccess, SshObservers
from gpuaas_stack import platform_services
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import pid_of
from tests.machines.controller import App, app_on
from tests.machines.people import SshFiles
from tests.machines.slices import make, release
from tests.support.waiting import until

LEASE_RUNS_OUT = 60
PASSWORD = "a password of a tester"
SHARED = {"/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/dev/mqueue"}


def start_paused_controller() -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "tests.machines.paused_controller"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_a_controller_that_wakes_up_late_changes_nothing(stack: Stack, cli: CommandLine, node: str) -> None:
    made = make(cli, "fenced")["fenced"]
    async with app_on(stack, made["project_id"], made["id"]) as app:
        (operation,) = [op async for op in app.client.operations.list(instance_id=app.instance.id)]
        slow = (
            "echo old-begins >>/root/effects; until [ -e /root/go ]; do sleep 0.1; done; echo old-ends >>/root/effects"
        )
        key = asyncssh.generate_private_key("ssh-ed25519")
        public = key.export_public_key().decode().strip()
        administrator = await app.admin.allocations.access(made["id"], public, lifetime_seconds=900)
        asked = {
            "administrator": {
                "login": administrator.login,
                "certificate": administrator.certificate,
                "key": key.export_private_key().decode(),
            },
            "api_url": stack.settings.api_url,
            "account_id": app.account_id,
            "private_key": app.private_key,
            "operation_id": operation.id,
            "slow": slow,
            "late": "echo late >>/root/effects",
        }
        old = start_paused_controller()
        try:
            assert old.stdin is not None
            assert old.stdout is not None
            old.stdin.write(json.dumps(asked) + "\n")
            old.stdin.flush()
            first = json.loads(await asyncio.to_thread(old.stdout.readline))
            wait = "for i in $(seq 100); do test -s /root/effects && break; sleep 0.1; done; cat /root/effects"
            assert cli.ssh("fenced", "sudo", "bash", "-c", f"'{wait}'").strip() == "old-begins"
            old.send_signal(signal.SIGSTOP)

            async def can_be_claimed() -> bool:
                return operation.id in [op.id async for op in app.client.operations.list(claimable=True)]

            await until(can_be_claimed, "the lease of the stopped controller ran out", LEASE_RUNS_OUT)
            claim = await app.client.operations.claim(operation.id, "successor")
            assert claim.fencing_token > first["fencing_token"]
            machines = SshMachineAccess(app.client, claim)
            await machines.prepare()
            machine = machines.machine(made["id"])
            acting = asyncio.create_task(machine.run_step("act", "echo new >>/root/effects"))

            async def is_fenced() -> bool:
                seen = await machine.read("cat /var/lib/gpuaas/fence/*.settled /var/lib/gpuaas/fence/ins_* 2>/dev/null")
                return str(claim.fencing_token) in seen.stdout

            await until(is_fenced, "the successor's token is on the machine", 60)
            assert not acting.done(), "it waits for the unit that its predecessor left running"
            assert (await machine.read("cat /root/effects")).stdout == "old-begins\n"
            cli.ssh("fenced", "sudo", "touch", "/root/go")
            await acting
            assert (await machine.read("cat /root/effects")).stdout == "old-begins\nold-ends\nnew\n"

            old.send_signal(signal.SIGCONT)
            old.stdin.write("go\n")
            old.stdin.flush()
            answers = json.loads(await asyncio.to_thread(old.stdout.readline))
            fenced = "MachineFencedError"
            assert answers.pop("slow") in {"0", "124", fenced}, "its outcome may be fetched, or is gone"
            refused = {"certificate": "refused", "platform": "StaleLeaseError"}
            assert answers == {"half": fenced, "next": fenced, "file": fenced, **refused}
            look = "cat /root/effects; ls /root/late 2>&1 || true; systemctl list-units --all 'gpuaas-*' | cat"
            seen = await machine.read(look)
            assert seen.stdout.startswith("old-begins\nold-ends\nnew\nls: cannot access")
            assert "gpuaas-op" not in seen.stdout, "no unit of anybody is left"
            await machines.close()
            await app.client.operations.complete(operation.id, claim.fencing_token)
        finally:
            old.send_signal(signal.SIGCONT)
            old.kill()
            old.wait(10)
    release(cli, "fenced")


FORBIDDEN = [
    "sudo -n true",
    "touch /root/x",
    "touch /etc/x",
    "touch /var/lib/x",
    "touch ~/x",
    "touch /usr/local/bin/x",
    "cat /etc/shadow",
    "systemctl restart ssh",
    "systemd-run true",
    "kill -TERM 1",
    "mount -t tmpfs x /mnt",
    "cat /etc/ssh/ssh_host_ed25519_key",
]


async def check_observer(app: App, allocation_id: str, files: SshFiles) -> None:
    """It sees what everybody sees, can write nothing that is not everybody's, and is out with its lease."""
    claim = await app.client.reconcile_leases.claim(app.instance.id, "observer")
    observers = SshObservers(app.client, claim, "cor-observer")
    await observers.prepare([allocation_id])
    machine = observers.machine(allocation_id)
    assert not hasattr(machine, "run_step")
    seen = await machine.read("id -un; id -u; pwd; cat /proc/loadavg | wc -w; systemctl is-active ssh")
    assert seen.stdout == f"{OBSERVER_LOGIN}\n9999\n/\n5\nactive\n", seen
    for command in FORBIDDEN:
        assert not (await machine.read(command)).ok, f"an observer can: {command}"
    found = await machine.read("find / -xdev -writable \\( -type d -o -type f \\) 2>/dev/null || true")
    own = [path for path in found.stdout.split() if not path.startswith(("/proc", *SHARED))]
    assert own == [], "an observer can write where nobody else could"

    grant = await app.client.reconcile_leases.access(app.instance.id, claim.fencing_token, files.key())
    key = asyncssh.read_private_key(files.directory / "key")
    await check_restricted(app, grant, files)
    # Its certificate is for nobody else on the machine.
    for login in ("root", "gpuaas"):
        with pytest.raises(asyncssh.PermissionDenied):
            await connect(app, grant.model_copy(update={"login": login}), key)

    open_one = await connect(app, grant, key)
    assert open_one.is_open
    await app.client.reconcile_leases.yield_lease(app.instance.id, claim.fencing_token)

    async def is_cut() -> bool:
        return not open_one.is_open

    await until(is_cut, "the open stream is cut", 60)
    await open_one.close()
    with pytest.raises(LeaseLostError):
        await machine.read("true")
    await observers.close()


async def connect(app: App, grant: AccessGrant, key: asyncssh.SSHKey) -> MachineConnection:
    (machine,) = grant.machines
    stream = await app.client.open_stream(grant.id, machine.allocation_id)
    return await connect_over(stream, grant, machine, key)


async def check_restricted(app: App, grant: AccessGrant, files: SshFiles) -> None:
    """No way through the machine to others, and no terminal."""
    (machine,) = grant.machines
    stream = {"id": grant.id, "host_authority": grant.host_authority}
    principal, certificate = machine.host_principal, grant.certificate
    _, *words = files.words(machine.allocation_id, grant.login, stream, certificate=certificate, principal=principal)
    environment = {**os.environ, "GPUAAS_API_URL": app.client.api_url, "GPUAAS_TOKEN": await app.client.token()}

    async def ssh(*command: str, options: Sequence[str] = ()) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            *("ssh", *options, *words, *command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        return out.decode().strip(), err.decode()

    entered = await ssh("echo entered")
    assert entered[0] == "entered", entered
    forwarded = await ssh(options=["-W", "127.0.0.1:22"])
    assert (forwarded[0], "prohibited" in forwarded[1]) == ("", True), forwarded
    terminal = await ssh("echo entered", options=["-tt"])
    assert (terminal[0], "PTY allocation request failed" in terminal[1]) == ("", True), terminal


AS_BEFORE = """
rm /etc/ssh/gpuaas_leases
echo 'AuthorizedKeysFile /etc/ssh/gpuaas_keys/%u' >/etc/ssh/sshd_config.d/05-gpuaas-keys.conf
echo 'restrict gpuaas-observer@ALLOCATION' >/etc/ssh/gpuaas_principals/gpuaas-observer
systemctl reload ssh.service
"""


def make_old(allocation_id: str) -> None:
    """Turn a machine into one of an agent that did not know leases."""
    name = allocation_id.replace("_", "-")
    lxc("config", "device", "remove", name, "leases")
    lxc("config", "unset", name, "user.gpuaas.sshd")
    lxc("exec", name, "--", "sh", "-euc", AS_BEFORE.replace("ALLOCATION", allocation_id))


def lxc(*words: str) -> str:
    return subprocess.run(["lxc", *words], check=True, capture_output=True, text=True).stdout


async def test_an_observer_can_look_and_nothing_else(stack: Stack, cli: CommandLine, node: str, tmp_path: Path) -> None:
    made = make(cli, "watched")["watched"]
    make_old(made["id"])
    async with app_on(stack, made["project_id"], made["id"]) as app:
        await check_observer(app, made["id"], SshFiles(tmp_path))
    assert OBSERVER_LOGIN not in lxc("exec", made["id"].replace("_", "-"), "--", "ls", "/etc/ssh/gpuaas_principals")
    release(cli, "watched")


async def test_the_machine_itself_refuses_a_lease_that_is_over(
    stack: Stack, cli: CommandLine, node: str, tmp_path: Path
) -> None:
    """On a route past the platform: what holds there is the machine's own word, not a stream that was cut."""
    made = make(cli, "ended")["ended"]
    files = SshFiles(tmp_path)
    async with app_on(stack, made["project_id"], made["id"]) as app:
        operations, leases = app.client.operations, app.client.reconcile_leases
        (operation,) = [op async for op in operations.list(instance_id=app.instance.id)]
        first = await operations.claim(operation.id, "first")
        old = await operations.access(operation.id, first.fencing_token, files.key())
        assert [machine.closed_at_end for machine in old.machines] == [True]
        key = asyncssh.read_private_key(files.directory / "key")
        session = await connect_past_the_platform(old, key)
        running = await session.create_process("echo $$; exec sleep 1000")
        process = (await running.stdout.readline()).strip()
        only_forwarding = await connect_past_the_platform(old, key)

        watch = await leases.claim(app.instance.id, "observer")
        observer = await leases.access(app.instance.id, watch.fencing_token, files.key())
        watching = await connect_past_the_platform(observer, key)
        await operations.yield_lease(operation.id, first.fencing_token)
        second = await operations.claim(operation.id, "second")
        new = await operations.access(operation.id, second.fencing_token, files.key())
        working = await connect_past_the_platform(new, key)

        async def is_cut() -> bool:
            return session.is_closed() and only_forwarding.is_closed()

        await until(is_cut, "the sessions of the lease that is over are cut", 60)
        with pytest.raises(asyncssh.PermissionDenied):
            await connect_past_the_platform(old, key)
        assert (await working.run("id -u", check=True)).stdout == "0\n", "another lease goes on"
        assert (await working.run(f"test -d /proc/{process}")).returncode == 1, "and what the old session ran is gone"
        assert (await watching.run("id -u", check=True)).stdout == "9999\n"

        await operations.complete(operation.id, second.fencing_token)
        await until(lambda: closed(working), "the end of the operation cuts its sessions", 60)
        for over in (old, new):
            with pytest.raises(asyncssh.PermissionDenied):
                await connect_past_the_platform(over, key)
        assert (await watching.run("id -u", check=True)).stdout == "9999\n", "the observer's lease is another one"
        await leases.yield_lease(app.instance.id, watch.fencing_token)
        await until(lambda: closed(watching), "the end of the observer's lease cuts its sessions", 60)
        with pytest.raises(asyncssh.PermissionDenied):
            await connect_past_the_platform(observer, key)
    release(cli, "ended")


@asynccontextmanager
async def administrator(app: App, project_id: str) -> "AsyncIterator[tuple[GpuaasClient, str]]":
    """Somebody who administers the project, and the role that says so."""
    user = await app.admin.users.create(f"chief-{secrets.token_hex(4)}@example.com", PASSWORD)
    role = await app.admin.memberships.create(user.id, Role.PROJECT_ADMIN, project_id=project_id)
    async with GpuaasClient(app.client.api_url, PasswordCredentials(user.email, PASSWORD)) as client:
        yield client, role.id


async def test_the_machine_itself_refuses_who_administered_it(
    stack: Stack, cli: CommandLine, node: str, tmp_path: Path
) -> None:
    """The certificate is good for a quarter of an hour, the role ends before: on a route past the platform."""
    made = make(cli, "governed")["governed"]
    files = SshFiles(tmp_path)
    async with (
        app_on(stack, made["project_id"], made["id"]) as app,
        administrator(app, made["project_id"]) as (leaving, role),
        administrator(app, made["project_id"]) as (staying, _),
    ):
        given = await leaving.allocations.access(made["id"], files.key(), lifetime_seconds=900)
        kept = await staying.allocations.access(made["id"], files.key(), lifetime_seconds=900)
        key = asyncssh.read_private_key(files.directory / "key")
        session, other = [await connect_past_the_platform(one, key) for one in (given, kept)]
        assert (await session.run("sudo id -u", check=True)).stdout == "0\n"
        await app.admin.memberships.delete(role)
        await until(lambda: closed(session), "the session of who administered the machine is cut", 60)
        with pytest.raises(asyncssh.PermissionDenied):
            await connect_past_the_platform(given, key)
        assert (await other.run("id -un", check=True)).stdout == "gpuaas\n", "the other one goes on"
        other.close()
    release(cli, "governed")


async def test_an_agent_that_is_cut_off_shuts_leases_out_by_itself(
    stack: Stack, cli: CommandLine, platform: Platform, node: str, tmp_path: Path
) -> None:
    """The platform is silent: no connection is closed, nobody answers. On a route past it, the machine refuses."""
    made = make(cli, "cut-off")["cut-off"]
    usual = platform_services.agent_service(stack.settings)
    stack.supervision.ensure_service(replace(usual, env={**usual.env, "GPUAAS_LEASE_PATIENCE_SECONDS": "2"}))
    try:
        await check_cut_off(stack, platform, node, made, SshFiles(tmp_path))
    finally:
        stack.supervision.ensure_service(usual)
        platform.wait_for_node(node, "ready")
    release(cli, "cut-off")


async def check_cut_off(stack: Stack, platform: Platform, node: str, made: dict[str, Any], files: SshFiles) -> None:
    async with app_on(stack, made["project_id"], made["id"]) as app:
        operations = app.client.operations
        (operation,) = [op async for op in operations.list(instance_id=app.instance.id)]
        # Through the new agent, whichever link the platform still takes for the newest.
        platform.wait_for_node(node, "ready")
        claim = await operations.claim(operation.id, "holder")
        lease = await operations.access(operation.id, claim.fencing_token, files.key())
        by_role = await app.admin.allocations.access(made["id"], files.key())
        key = asyncssh.read_private_key(files.directory / "key")
        session = await connect_past_the_platform(lease, key)
        person = await connect_past_the_platform(by_role, key)
        silent = pid_of(stack, "api")
        os.kill(silent, signal.SIGSTOP)
        try:
            await until(lambda: closed(session), "the agent cuts the sessions of the lease", 90)
            with pytest.raises(asyncssh.PermissionDenied):
                await connect_past_the_platform(lease, key)
            assert (await person.run("id -un", check=True)).stdout == "gpuaas\n", "people are not thrown out"
        finally:
            os.kill(silent, signal.SIGCONT)
        person.close()
        platform.wait_for_node(node, "ready")

        async def claim_again() -> Claim | None:
            with suppress(ApiError):
                return await operations.claim(operation.id, "holder")
            return None

        claim = await until(claim_again, "the lease that ran out meanwhile can be had again", LEASE_RUNS_OUT)
        again = await operations.access(operation.id, claim.fencing_token, files.key())
        (await connect_past_the_platform(again, key)).close()
        await operations.complete(operation.id, claim.fencing_token)


async def test_a_deploy_looks_at_the_machine_of_a_member_that_it_cannot_change(
    stack: Stack, cli: CommandLine, node: str, tmp_path: Path
) -> None:
    made = make(cli, "head", "tail")
    head, tail = made["head"], made["tail"]
    async with app_on(stack, head["project_id"], head["id"], tails=[tail["id"]]) as app:
        operations = app.client.operations
        (deploy,) = [op async for op in operations.list(instance_id=app.instance.id) if op.kind == "deploy"]
        claim = await operations.claim(deploy.id, "first")
        machines = SshMachineAccess(app.client, claim)
        await machines.prepare()
        context = OperationContext(app.client, claim, machines)
        with pytest.raises(MachineUnreachableError, match="not an active machine of this operation"):
            context.machine(tail["id"])
        with pytest.raises(NotObservableError, match="not a machine of this instance"):
            await context.observed_machine("alc_elsewhere")
        for allocation_id in (tail["id"], head["id"]):
            machine = await context.observed_machine(allocation_id)
            assert not hasattr(machine, "run_step")
            assert (await machine.read("id -un; id -u")).stdout == f"{OBSERVER_LOGIN}\n9999\n"
            for command in FORBIDDEN:
                assert not (await machine.read(command)).ok, f"an observer can: {command}"
        facts = await read_facts(await context.observed_machine(tail["id"]))
        assert facts.hostname == tail["hostname"]
        assert (await context.machine(head["id"]).read("id -u")).stdout == "0\n", "and works on its own as before"

        files = SshFiles(tmp_path)
        grant = await operations.access(deploy.id, claim.fencing_token, files.key(), observer=True)
        key = asyncssh.read_private_key(files.directory / "key")
        of_tail = [address for address in grant.machines if address.allocation_id == tail["id"]]
        looking = grant.model_copy(update={"machines": of_tail})
        session = await connect_past_the_platform(looking, key)
        with pytest.raises(asyncssh.PermissionDenied):
            await connect_past_the_platform(looking.model_copy(update={"login": "root"}), key)
        await operations.yield_lease(deploy.id, claim.fencing_token)
        await until(lambda: closed(session), "the end of the lease cuts the sessions of its observer", 60)
        with pytest.raises(asyncssh.PermissionDenied):
            await connect_past_the_platform(looking, key)
        with pytest.raises(LeaseLostError):
            await (await context.observed_machine(tail["id"])).read("true")
        await machines.close()
    release(cli, "head", "tail")


async def closed(connection: asyncssh.SSHClientConnection) -> bool:
    return connection.is_closed()


async def connect_past_the_platform(grant: AccessGrant, key: asyncssh.SSHKey) -> asyncssh.SSHClientConnection:
    (machine,) = grant.machines
    return await asyncssh.connect(
        machine.address,
        host_key_alias=machine.host_principal,
        username=grant.login,
        client_keys=[(key, asyncssh.import_certificate(grant.certificate))],
        known_hosts=trusted_hosts(grant, machine),
        config=None,
        agent_path=None,
        preferred_auth="publickey",
    )
