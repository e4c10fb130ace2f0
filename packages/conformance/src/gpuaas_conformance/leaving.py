"""The end of a run: what the kit has made goes again, whatever the app's controller is worth."""

import signal

from gpuaas_conformance.subject import Subject, TookTooLongError, until
from gpuaas_contract.instances import Instance, InstanceStatus
from gpuaas_contract.operations import Claim, Operation, OperationError, OperationState
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ConflictError

LEAVE_SECONDS = 60.0
HOLDER = "gpuaas-conformance"


async def take_leave(subject: Subject) -> list[str]:
    """Decommission the instances that are left, by the app's own controller where it can. Return what had to be given
    up instead, for people to look at."""
    given_up = []
    # Those of a run that was broken off may be stopped, or worse.
    await subject.end(signal.SIGKILL)
    for instance_id in subject.deployed:
        instance = await subject.admin.instances.get(instance_id)
        if instance.status == InstanceStatus.DECOMMISSIONED or await _is_taken_apart(subject, instance):
            continue
        await subject.end(signal.SIGKILL)
        names = ", ".join(machine.name for machine in subject.machines)
        what = f"{instance.name} ({instance_id})"
        try:
            await _give_up(subject, instance)
        except (TookTooLongError, ConflictError) as error:
            given_up.append(f"{what} is still there, with {names}: its controller did not take it apart, and {error}")
        else:
            given_up.append(
                f"{what} was abandoned, since its controller did not take it apart: look at {names} for what is left"
            )
    await subject.end()
    return given_up


async def _is_taken_apart(subject: Subject, instance: Instance) -> bool:
    if not subject.processes:
        subject.start()
    try:
        ended = await subject.until_ended(await _asked_to_go(subject, instance), LEAVE_SECONDS)
    except TookTooLongError:
        return False
    return ended.state == OperationState.SUCCEEDED


async def _asked_to_go(subject: Subject, instance: Instance) -> Operation:
    async for operation in subject.admin.operations.list(instance_id=instance.id):
        if operation.kind == "decommission" and not operation.state.is_final:
            return operation
    return await subject.admin.instances.request(instance.id, "decommission")


async def _give_up(subject: Subject, instance: Instance) -> None:
    """A decommission cannot be called off, and only one that failed lets an instance be written off: the kit, which has
    the controller's account, ends it in the controller's place."""
    asked = await _asked_to_go(subject, instance)
    if not asked.state.is_final:
        async with GpuaasClient.from_service_account_file(subject.account, api_url=subject.admin.api_url) as controller:

            async def claimed() -> Claim | None:
                try:
                    return await controller.operations.claim(asked.id, HOLDER)
                except ConflictError:
                    # The lease of a controller that was killed has to run out first.
                    return None

            claim = await until(claimed, "the lease of the killed controller has run out", 2 * LEAVE_SECONDS)
            error = OperationError(code="given_up", detail="the conformance kit has ended the run", retryable=True)
            await controller.operations.fail(asked.id, claim.fencing_token, error)
    await subject.admin.instances.abandon(instance.id, "gpuaas-conformance: its controller did not take it apart")
