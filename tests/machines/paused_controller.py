"""A controller that is stopped in the middle of its work and goes on when its lease is long gone.

It reaches its machine straight, past the platform's streams, and with the key of an administrator, which the machine
does not refuse at the lease's end: what the platform and the machine's sshd can cut is not what is tested. Its own
certificate is tried at the end."""

import asyncio
import json
import shlex
import sys
import uuid

import asyncssh

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.errors import GpuaasError
from gpuaas_sdk.machines import remote
from gpuaas_sdk.machines.connection import trusted_hosts


async def main() -> None:
    asked = json.loads(sys.stdin.readline())
    credentials = ServiceAccountCredentials(asked["account_id"], asked["private_key"])
    async with GpuaasClient(asked["api_url"], credentials) as client:
        claim = await client.operations.claim(asked["operation_id"], "paused")
        key = asyncssh.generate_private_key("ssh-ed25519")
        public = key.export_public_key().decode().strip()
        grant = await client.operations.access(claim.operation.id, claim.fencing_token, public)
        (machine,) = grant.machines

        async def connect(login: str, own: asyncssh.SSHKey, certificate: str) -> asyncssh.SSHClientConnection:
            return await asyncssh.connect(
                machine.address,
                username=login,
                client_keys=[(own, asyncssh.import_certificate(certificate))],
                known_hosts=trusted_hosts(grant, machine),
                host_key_alias=machine.host_principal,
                config=None,
                agent_path=None,
            )

        await connect(grant.login, key, grant.certificate)
        administrator = asyncssh.import_private_key(asked["administrator"]["key"])
        ssh = await connect(asked["administrator"]["login"], administrator, asked["administrator"]["certificate"])
        fence = remote.Fence.of(claim)

        def step(name: str, script: str) -> str:
            return remote.step_command(fence, name, script.encode(), call=uuid.uuid4().hex, timeout=300)

        def as_root(command: str) -> str:
            return f"sudo -n -- sh -c {shlex.quote(command)}"

        async def run(command: str, script: str) -> str:
            done = await ssh.run(as_root(command), input=script.encode(), encoding=None)
            return outcome(done.returncode, done.stdout, done.stderr)

        # One step runs as a unit. Another has raised the fence and waits for its script: about to start.
        slow = asyncio.create_task(run(step("slow", asked["slow"]), asked["slow"]))
        half = await ssh.create_process(as_root(step("half", asked["late"])), encoding=None)
        print(json.dumps({"fencing_token": claim.fencing_token}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        answers = {"slow": await slow}
        half.stdin.write(asked["late"].encode())
        half.stdin.write_eof()
        done = await half.wait()
        answers["half"] = outcome(done.returncode, done.stdout, done.stderr)
        answers["next"] = await run(step("next", asked["late"]), asked["late"])
        length = len(asked["late"].encode())
        file = remote.file_command(fence, "/root/late", length, mode=0o644, owner="root", group="root")
        answers["file"] = await run(file, asked["late"])
        try:
            await connect(grant.login, key, grant.certificate)
            answers["certificate"] = "taken"
        except asyncssh.PermissionDenied:
            answers["certificate"] = "refused"
        try:
            await client.operations.heartbeat(claim.operation.id, claim.fencing_token)
            answers["platform"] = "renewed"
        except GpuaasError as error:
            answers["platform"] = type(error).__name__
        print(json.dumps(answers), flush=True)


def outcome(status: int | None, stdout: object, stderr: object) -> str:
    """Without an encoding both are bytes; asyncssh's types cannot say so."""
    assert isinstance(stdout, bytes)
    assert isinstance(stderr, bytes)
    try:
        return str(remote.step_result("run the step", status or 0, stdout, stderr).exit_status)
    except GpuaasError as error:
        return type(error).__name__


asyncio.run(main())
