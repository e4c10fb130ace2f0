"""Failures that the app raises, beside CommandError and MachineUnreachableError of the SDK."""

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import OperationFailed


class SlurmAppError(OperationFailed):
    """The root: fails the operation, or the command of `slurm-app`, with a stable code and words for a person."""

    retry_may_help = False

    def __init__(
        self, code: str, detail: str, *, member_usable: bool = False, evidence: JsonObject | None = None
    ) -> None:
        super().__init__(code, detail, retryable=self.retry_may_help, member_usable=member_usable, evidence=evidence)


class RefusedError(SlurmAppError):
    """The input or the machine does not allow it; trying again changes nothing."""


class NotReadyError(SlurmAppError):
    """Something is not yet, or no longer, as it has to be. Trying again may help."""

    retry_may_help = True
