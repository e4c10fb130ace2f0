"""The reference app's controller, broken on purpose, for tests of the conformance kit: `broken_rollcall.py WHICH`."""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import Operation, StepStatus
from gpuaas_sdk import LeaseLostError, Machine, MachineUnreachableError, OperationContext
from gpuaas_sdk.resources.operations import Operations
from gpuaas_sdk.runtime.lease import KeptLease, Lease
from reference_app import controller, software
from reference_app.cluster import Cluster
from reference_app.operations import decommission, deploy
from reference_app.software import RECORD_DIR, Role

_report, _keep = Operations.report_step, Lease.keep
_configured, _decommission, _deploy = software.ensure_configured, decommission.reconcile, deploy.reconcile


def unannounced() -> None:
    async def report(self: Operations, operation_id: str, fencing_token: int, **step: Any) -> Operation:
        if step["status"] == StepStatus.RUNNING:
            return await self.get(operation_id)
        return await _report(self, operation_id, fencing_token, **step)

    Operations.report_step = report  # type: ignore[method-assign]


def leaky() -> None:
    async def configured(machine: Machine, role: Role, config: dict[str, Any], token: Any) -> None:
        logging.info("writing the token %s", token.reveal_text())
        await _configured(machine, role, config, token)

    software.ensure_configured = configured


def liar() -> None:
    async def removed(machine: Machine, leaving: Any, staying: Any) -> None:
        await machine.run_step("remove", "systemctl stop 'rollcall-*'")

    software.ensure_removed = removed
    decommission.checks = lambda leaving, staying, port: {"paths": "true"}  # type: ignore[attr-defined]


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
    async def recorded(machine: Machine) -> dict[str, Any]:
        await machine.run_step("record", f"mkdir {RECORD_DIR}")
        return {}

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

    async def report(self: Operations, operation_id: str, fencing_token: int, **step: Any) -> Operation:
        for _ in range(20):
            try:
                return await _report(self, operation_id, fencing_token, **step)
            except LeaseLostError:
                await asyncio.sleep(0.05)
        return await self.get(operation_id)

    Lease.keep = keep  # type: ignore[method-assign]
    Operations.report_step = report  # type: ignore[method-assign]


def silent() -> None:
    async def keep(self: KeptLease) -> None:
        await asyncio.Event().wait()

    Lease.keep = keep  # type: ignore[method-assign]


WAYS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (unannounced, leaky, liar, hasty, forgetful, hopeful, deaf, silent)
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
    controller.run()
