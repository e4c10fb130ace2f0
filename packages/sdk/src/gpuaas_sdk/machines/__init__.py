"""Machine access: what a controller may do on the machines of an operation that it holds."""

from gpuaas_sdk.machines.base import (
    COPIED_ARTIFACTS,
    CommandError,
    CommandResult,
    Machine,
    MachineUnreachableError,
)

__all__ = ["COPIED_ARTIFACTS", "CommandError", "CommandResult", "Machine", "MachineUnreachableError"]
