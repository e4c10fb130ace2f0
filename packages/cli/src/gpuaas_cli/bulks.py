"""The same operation on many members: what was asked for, what became of each, and waiting for all of them."""

from typing import TYPE_CHECKING

from gpuaas_cli import output
from gpuaas_cli.errors import USAGE, WORK_FAILED, CliError
from gpuaas_cli.live import Progress
from gpuaas_contract.bulk import AtLeast, Bulk, BulkPolicy, BulkState, Policy

if TYPE_CHECKING:
    from gpuaas_cli.session import Session


def read_policy(words: str) -> BulkPolicy:
    """all_or_nothing, best_effort, or a number: at least so many."""
    if words.isdecimal() and int(words) > 0:
        return AtLeast(at_least=int(words))
    try:
        return Policy(words.replace("-", "_"))
    except ValueError:
        known = ", ".join(Policy)
        raise CliError(f"there is no policy {words!r}: {known}, or at least how many", USAGE) from None


async def wait_for_bulk(session: "Session", bulk: Bulk, timeout: float) -> Bulk:
    from gpuaas_cli.waiting import looks

    async with Progress() as progress:
        scope = {"project_id": bulk.project_id, "instance_id": bulk.instance_id}
        async for _ in looks(session, f"{bulk.kind} of {len(bulk.results)} members", timeout, **scope):
            bulk = await session.client.bulk_operations.get(bulk.id)
            ids = {result.operation_id for result in bulk.results if result.operation_id is not None}
            operations = await session.client.operations.list(instance_id=bulk.instance_id).all()
            progress.show([operation for operation in operations if operation.id in ids])
            if bulk.state != BulkState.RUNNING:
                break
    return bulk


def show_bulk(bulk: Bulk) -> None:
    if output.document(bulk):
        return
    policy = f"at least {bulk.policy.at_least}" if isinstance(bulk.policy, AtLeast) else bulk.policy.value
    output.pairs(
        {"kind": bulk.kind, "state": bulk.state, "policy": policy, "id": bulk.id, "correlation id": bulk.correlation_id}
    )
    output.heading("Each of them")
    rows = [
        [
            output.text(result.member_id or result.allocation_id),
            output.text("refused" if result.refused else result.state),
            result.refused.detail if result.refused else "",
            output.text(result.operation_id),
        ]
        for result in bulk.results
    ]
    output.table(rows, ["member", "state", "why", "operation"])


def check_bulk(bulk: Bulk) -> None:
    if bulk.state == BulkState.FAILED:
        done = sum(result.state == "succeeded" for result in bulk.results)
        raise CliError(
            f"{bulk.kind} succeeded on {done} of {len(bulk.results)}, which is not what was asked for",
            WORK_FAILED,
            hint=f"gpuaas instance explain {bulk.instance_id}",
        )
