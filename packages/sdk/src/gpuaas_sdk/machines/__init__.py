"""Machine access: what a controller may do on the machines of an operation that it holds."""

from gpuaas_sdk.machines.base import CommandError, CommandResult, Machine, MachineUnreachableError

__all__ = ["CommandError", "CommandResult", "Machine", "MachineUnreachableError"]
