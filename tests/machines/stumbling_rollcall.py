"""The reference app's controller, for which every step on a machine first fails half-way and then runs twice."""

from gpuaas_sdk import CommandError, CommandResult
from gpuaas_sdk.machines.ssh import SshMachine
from reference_app import controller

_run_step = SshMachine.run_step


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


if __name__ == "__main__":
    SshMachine.run_step = stumble  # type: ignore[method-assign]
    controller.run()
