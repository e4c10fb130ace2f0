"""The reference app's controller, broken on purpose, for tests of the conformance kit: `broken_rollcall.py WHICH`."""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import Lease as HeldLease
from gpuaas_contract.operations import Operation, OperationState, StepStatus, WorkAcknowledged
from gpuaas_sdk import (
    CommandResult,
    LeaseLostError,
    Machine,
    MachineReceipt,
    MachineUnreachableError,
    OperationContext,
    OperationFailed,
    probe,
)
from gpuaas_sdk.errors import DeliveryFailedError
from gpuaas_sdk.machines.noted import NotedMachine
from gpuaas_sdk.resources.operations import Operations
from gpuaas_sdk.runtime.lease import KeptLease, Lease
from reference_app import controller, software
from reference_app.cluster import Cluster
from reference_app.operations import decommission, deploy
from reference_app.software import CONFIG_DIR, PROGRAM_DIR, RECORD_DIR, STATE_DIR, Role

_report, _keep = Operations.report_step, Lease.keep
_recorded, _installed, _removed = software.ensure_recorded, software.ensure_installed, software.ensure_removed
_configured, _decommission, _deploy = software.ensure_configured, decommission.reconcile, deploy.reconcile


def _silence(operation: Operation) -> WorkAcknowledged:
    """Answer in the platform's place, as if a report had been accepted."""
    lease = operation.lease or HeldLease(holder="nobody", expires_at=operation.deadline)
    return WorkAcknowledged(id=operation.id, revision=operation.revision, state=OperationState.RUNNING, lease=lease)


def unannounced() -> None:
    async def report(self: Operations, operation_id: str, fencing_token: int, **step: Any) -> WorkAcknowledged:
        if step["status"] == StepStatus.RUNNING:
            return _silence(await self.get(operation_id))
        return await _report(self, operation_id, fencing_token, **step)

    Operations.report_step = report  # type: ignore[method-assign]


def leaky() -> None:
    async def configured(machine: Machine, role: Role, config: dict[str, Any], token: Any) -> None:
        logging.info("writing the token %s", token.reveal_text())
        await _configured(machine, role, config, token)

    software.ensure_configured = configured


def liar() -> None:
    async def removed(machine: Machine, leaving: Any, staying: Any) -> dict[str, Any]:
        await machine.run_step("remove", "systemctl stop 'rollcall-*'")
        return {}

    async def proven(machine: Machine, leaving: Any, staying: Any, port: int, *, came: bool = True) -> MachineReceipt:
        return await probe(machine, {"paths": "true"})

    software.ensure_removed = removed
    decommission.prove_removed = proven  # type: ignore[attr-defined]


def careless() -> None:
    async def configured(machine: Machine, role: Role, config: dict[str, Any], token: Any) -> None:
        await _configured(machine, role, config, token)
        await machine.run_step("open", f"chmod 0644 {CONFIG_DIR}/token")

    software.ensure_configured = configured


def unfenced() -> None:
    """Change something by a command that should only look: such commands are not fenced, and need no lease."""

    class Unfenced(NotedMachine):
        async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
            return await self.read(script, timeout=timeout)

    async def installed(machine: Machine, digest: str) -> Any:
        return await _installed(Unfenced(machine, "", lambda command: None), digest)

    software.ensure_installed = installed


def buggy() -> None:
    async def installed(machine: Machine, digest: str) -> Any:
        try:
            return await _installed(machine, digest)
        except DeliveryFailedError as error:
            return {"version": error.args[7]}

    software.ensure_installed = installed


def greedy() -> None:
    async def removed(machine: Machine, leaving: Any, staying: Any) -> dict[str, Any]:
        said = await _removed(machine, leaving, staying)
        await machine.run_step("remove-all", f"rm -rf {PROGRAM_DIR} {CONFIG_DIR} {STATE_DIR}")
        return said

    software.ensure_removed = removed


def stubborn() -> None:
    """Takes nothing apart: the kit has to write its instance off."""

    async def reconcile(operation: OperationContext) -> Any:
        raise OperationFailed("unwilling", "this controller takes nothing apart")

    controller.HANDLERS["decommission"] = reconcile


def hasty() -> None:
    async def reconcile(operation: OperationContext) -> Any:
        try:
            async with asyncio.timeout(5):
                return await _decommission(operation)
        except (MachineUnreachableError, TimeoutError):
            members = (await Cluster.read(operation)).members
            operation.statuses_on_success.update({member.id: MemberStatus.REMOVED for member in members})
            return {"receipt": {"ok": True, "members": [{"member_id": member.id} for member in members]}}

    controller.HANDLERS["decommission"] = reconcile


def forgetful() -> None:
    async def recorded(machine: Machine, role: Role) -> dict[str, Any]:
        await machine.run_step("make", f"mkdir {RECORD_DIR}")
        return await _recorded(machine, role)

    software.ensure_recorded = recorded


def hopeful() -> None:
    async def reconcile(operation: OperationContext) -> Any:
        await deploy.report_ready(operation, await Cluster.read(operation), "1.0.0")
        return await _deploy(operation)

    controller.HANDLERS["deploy"] = reconcile


def deaf() -> None:
    async def keep(self: KeptLease) -> None:
        try:
            await _keep(self)
        except LeaseLostError:
            await asyncio.Event().wait()

    async def report(self: Operations, operation_id: str, fencing_token: int, **step: Any) -> WorkAcknowledged:
        for _ in range(20):
            try:
                return await _report(self, operation_id, fencing_token, **step)
            except LeaseLostError:
                await asyncio.sleep(0.05)
        return _silence(await self.get(operation_id))

    Lease.keep = keep  # type: ignore[method-assign]
    Operations.report_step = report  # type: ignore[method-assign]


def silent() -> None:
    async def keep(self: KeptLease) -> None:
        await asyncio.Event().wait()

    Lease.keep = keep  # type: ignore[method-assign]


WAYS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        unannounced,
        leaky,
        careless,
        unfenced,
        buggy,
        greedy,
        stubborn,
        liar,
        hasty,
        forgetful,
        hopeful,
        deaf,
        silent,
    )
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
    controller.run()
