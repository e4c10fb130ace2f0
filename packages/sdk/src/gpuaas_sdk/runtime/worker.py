"""One operation from claim to end: the handler runs, the lease is kept, the outcome is reported."""

import asyncio
import logging
import traceback
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_contract.operations import Claim, OperationError
from gpuaas_sdk import clock
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.correlation import correlation
from gpuaas_sdk.errors import (
    ANSWERS_LATER,
    ConflictError,
    DeliveryFailedError,
    GpuaasError,
    LeaseLostError,
    NotFoundError,
    TransportError,
)
from gpuaas_sdk.machines.base import CommandError, MachineUnreachableError
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.runtime.context import MachineAccess, OperationContext, bounded, command_failed, words_for
from gpuaas_sdk.runtime.errors import OperationCancelled, OperationFailed, PlatformAway, RetryLater
from gpuaas_sdk.runtime.lease import Lease

logger = logging.getLogger(__name__)

Handler = Callable[[OperationContext], Awaitable[JsonObject | None]]
MachineAccessFactory = Callable[[GpuaasClient, Claim], MachineAccess]

REPORT_RETRY = RetryPolicy(first_delay=0.2, longest_delay=3.0)
HAND_BACK_SECONDS = 5.0


class Worker:
    """Works on one claimed operation."""

    def __init__(
        self, client: GpuaasClient, claim: Claim, lease: Lease, handler: Handler, machines: MachineAccess
    ) -> None:
        self._client = client
        self._claim = claim
        self._lease = lease
        self._handler = handler
        self._machines = machines

    async def run(self) -> RetryLater | None:
        """Run until the operation ended, the lease was lost (None), or a retry is due later."""
        operation = self._claim.operation
        with correlation(operation.correlation_id):
            work = asyncio.create_task(self._work())
            keeper = asyncio.create_task(self._lease.keep())
            try:
                await asyncio.wait({work, keeper}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    # The lease is gone: whatever the handler was about to do is not ours to do any more.
                    logger.warning("%s: %s; stopping", operation.id, keeper.exception())
                    return None
                return work.result()
            except LeaseLostError as error:
                logger.warning("%s: %s; stopping", operation.id, error)
                return None
            except asyncio.CancelledError:
                # Shutting down: the handler stops first, then the lease goes back.
                await _cancelled(work)
                await self._hand_back()
                raise
            finally:
                await _cancelled(work, keeper)
                await self._machines.close()

    async def _work(self) -> RetryLater | None:
        operation = self._claim.operation
        context = OperationContext(self._client, self._claim, self._machines)
        self._lease.on_cancel = context.request_cancel
        try:
            result = await self._handle(context)
        except RetryLater as later:
            return await self._give_way(later)
        except MachineUnreachableError as error:
            return await self._give_way(RetryLater(None, f"a machine does not answer: {error}"))
        except OperationFailed as failure:
            await self._fail(failure)
        except OperationCancelled:
            await self._end_cancelled()
        except LeaseLostError:
            raise
        except DeliveryFailedError as error:
            await self._fail(OperationFailed("delivery_failed", str(error), retryable=True))
        except CommandError as error:
            await self._fail(command_failed(error))
        except TransportError as error:
            return await self._give_way(PlatformAway(error))
        except ANSWERS_LATER as error:
            return await self._give_way(RetryLater(None, f"the platform does not answer: {error}"))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            logger.exception("%s: bug in the handler of %s", operation.id, operation.kind)
            detail = f"{words_for(error)} ({where.name}, line {where.lineno})"
            await self._fail(OperationFailed("controller_bug", detail, retryable=True))
        else:
            key = uuid.uuid4().hex
            await self._report(
                lambda: self._client.operations.complete(
                    operation.id,
                    self._claim.fencing_token,
                    result=result,
                    member_statuses=context.statuses_on_success,
                    idempotency_key=key,
                )
            )
            logger.info("%s: %s succeeded", operation.id, operation.kind)
        return None

    async def _handle(self, context: OperationContext) -> JsonObject | None:
        operation = self._claim.operation
        seconds_left = (operation.deadline - clock.now()).total_seconds()
        try:
            async with asyncio.timeout(max(seconds_left, 0.0)) as limit:
                await self._machines.prepare()
                return await self._handler(context)
        except TimeoutError:
            if not limit.expired():
                raise
            raise OperationFailed(
                "deadline_exceeded",
                f"not finished before its deadline {operation.deadline:%FT%TZ}",
                retryable=True,
            ) from None

    async def _give_way(self, later: RetryLater) -> RetryLater | None:
        """Hand the lease back to try again, unless the deadline leaves no time for that."""
        operation = self._claim.operation
        if operation.deadline <= clock.now():
            await self._fail(OperationFailed("deadline_exceeded", words_for(later), retryable=True))
            return None
        logger.info("%s: will be retried: %s", operation.id, later.reason)
        key = uuid.uuid4().hex
        await self._report(
            lambda: self._client.operations.yield_lease(operation.id, self._claim.fencing_token, idempotency_key=key)
        )
        return later

    async def _fail(self, failure: OperationFailed) -> None:
        operation = self._claim.operation
        logger.warning("%s: %s failed: %s: %s", operation.id, operation.kind, failure.code, failure.detail)
        error = OperationError(
            code=failure.code,
            detail=bounded(failure.detail),
            retryable=failure.retryable,
            member_usable=failure.member_usable,
        )
        key = uuid.uuid4().hex
        await self._report(
            lambda: self._client.operations.fail(
                operation.id, self._claim.fencing_token, error, result=failure.result, idempotency_key=key
            )
        )

    async def _end_cancelled(self) -> None:
        operation, key = self._claim.operation, uuid.uuid4().hex
        logger.info("%s: %s was cancelled", operation.id, operation.kind)
        await self._report(
            lambda: self._client.operations.end_cancelled(operation.id, self._claim.fencing_token, idempotency_key=key)
        )

    async def _report(self, send: Callable[[], Awaitable[Any]]) -> None:
        """An outcome is worth repeating until it is heard or the lease is gone (the keeper sees to that)."""
        failures = 0
        while True:
            try:
                await send()
                return
            except ANSWERS_LATER as error:
                failures += 1
                logger.warning("%s: cannot report the outcome yet: %s", self._claim.operation.id, error)
                await asyncio.sleep(REPORT_RETRY.delay(failures))

    async def _hand_back(self) -> None:
        try:
            async with asyncio.timeout(HAND_BACK_SECONDS):
                await self._client.operations.yield_lease(self._claim.operation.id, self._claim.fencing_token)
        except (GpuaasError, TimeoutError) as error:
            logger.info("%s: lease not handed back, it will expire: %s", self._claim.operation.id, error)


async def _cancelled(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def claim_operation(client: GpuaasClient, operation_id: str, holder: str) -> tuple[Claim, Lease] | None:
    """Claim the operation; return None if another controller was faster or nothing is left to do."""
    claimed_at = asyncio.get_running_loop().time()
    claiming = asyncio.ensure_future(client.operations.claim(operation_id, holder))
    try:
        claim = await asyncio.shield(claiming)
    except asyncio.CancelledError:
        # Shutting down: the platform may have said yes already, and then the lease goes back.
        await _give_back_claim(client, operation_id, claiming)
        raise
    except (ConflictError, NotFoundError) as error:
        logger.info("%s: not claimed: %s", operation_id, error)
        return None
    return claim, Lease(client, claim, claimed_at=claimed_at)


async def _give_back_claim(client: GpuaasClient, operation_id: str, claiming: "asyncio.Future[Claim]") -> None:
    try:
        async with asyncio.timeout(HAND_BACK_SECONDS):
            claim = await claiming
            await client.operations.yield_lease(operation_id, claim.fencing_token)
    except (GpuaasError, TimeoutError) as error:
        logger.info("%s: lease not handed back, it will expire: %s", operation_id, error)
