"""An app's own checks before a deploy or an operation: a handler that looks and says what it found."""

from collections.abc import Awaitable, Callable, Sequence

from gpuaas_contract.base import JsonObject
from gpuaas_contract.findings import Finding, Severity
from gpuaas_contract.operations import Kind
from gpuaas_contract.preflights import Preflight, PreflightResult
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.machines.base import MachineUnreachableError, ObservedMachine
from gpuaas_sdk.runtime.context import OperationContext


class PreflightContext:
    """The request, and read-only access to the machines that it names.

    Attributes:
        preflight: `request` is the body that would be sent, `kind` the operation that it would start.
    """

    def __init__(self, context: OperationContext, preflight: Preflight) -> None:
        self._context = context
        self.preflight = preflight

    @property
    def client(self) -> GpuaasClient:
        """The API, under the controller's own account."""
        return self._context.client

    @property
    def holds_up(self) -> bool:
        """Whether a deploy waits for the findings: then a machine that does not answer is waited for, as the deploy
        itself would. Let MachineUnreachableError pass."""
        return self.preflight.kind == Kind.DEPLOY and self.preflight.instance_id is not None

    @property
    def allocation_ids(self) -> list[str]:
        """The machines that may be looked at."""
        return self.preflight.allocation_ids

    def machine(self, allocation_id: str) -> ObservedMachine:
        """Return the machine for an observer, who is not root."""
        return self._context.machine(allocation_id)


PreflightHandler = Callable[[PreflightContext], Awaitable[Sequence[Finding]]]


def preflight_handler(check: PreflightHandler) -> Callable[[OperationContext], Awaitable[JsonObject]]:
    """The handler for the kind `preflight`. A machine that does not answer is a finding, and a reason to wait only
    where a deploy waits for the findings."""

    async def handle(context: OperationContext) -> JsonObject:
        preflight_id = context.operation.preflight_id
        assert preflight_id is not None
        preflight = await context.client.preflights.get(preflight_id)
        looking = PreflightContext(context, preflight)
        try:
            findings = [*await check(looking)]
        except MachineUnreachableError as error:
            if looking.holds_up:
                raise
            action = "check that the machine is up, then ask again"
            found = Finding(severity=Severity.ERROR, code="machine_unreachable", message=str(error), action=action)
            findings = [found]
        return PreflightResult(findings=findings).model_dump(mode="json")

    return handle
