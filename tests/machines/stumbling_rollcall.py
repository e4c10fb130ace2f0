"""The reference app's controller, for which every step on a machine first fails half-way and then runs twice, and every
file first arrives half and then is written twice."""

import shlex

from gpuaas_sdk import CommandError, CommandResult
from gpuaas_sdk.machines import remote
from gpuaas_sdk.machines.ssh import SshMachine
from reference_app import controller

RECEIVED_LESS = 75
_run_step, _write_file = SshMachine.run_step, SshMachine.write_file


async def stumble(self: SshMachine, step: str, script: str, *, timeout: float = 300) -> CommandResult:
    lines = script.strip().splitlines()
    try:
        # bash runs what comes before the line at which it finds out.
        await _run_step(self, step, "\n".join([*lines[: len(lines) // 2], "exit 1"]), timeout=timeout)
    except CommandError:
        pass
    else:
        raise AssertionError(f"half of {step} succeeded")
    await _run_step(self, step, script, timeout=timeout)
    return await _run_step(self, step, script, timeout=timeout)


async def stumble_over_file(
    self: SshMachine, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
) -> None:
    data = content.encode() if isinstance(content, str) else content
    before = await _all_of(self, path)
    command = remote.file_command(self.fence, path, len(data), mode=mode, owner=owner, group=group)
    # The rest never comes: as where the connection is cut.
    cut = await self.run_repeatable(command, data[: len(data) // 2], 300)
    if cut.exit_status != RECEIVED_LESS or await _all_of(self, path) != before:
        raise AssertionError(f"half of {path} was taken for a file, or is still there")
    for _ in range(2):
        await _write_file(self, path, data, mode=mode, owner=owner, group=group)


async def _all_of(machine: SshMachine, path: str) -> str:
    """Describe the file, if there is one, and any leftovers beside it."""
    quoted, directory = shlex.quote(path), shlex.quote(path.rpartition("/")[0])
    look = f"if [[ -e {quoted} ]]; then stat -c '%a %U' {quoted}; sha256sum {quoted}; fi; ls -A {directory}"
    return (await machine.read(look)).stdout


if __name__ == "__main__":
    SshMachine.run_step = stumble  # type: ignore[method-assign]
    SshMachine.write_file = stumble_over_file  # type: ignore[method-assign]
    controller.run()
