"""The controller process: a service account, the public API, and one handler for each kind of operation."""

from collections.abc import Awaitable, Callable
from contextlib import closing

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import OperationContext, preflight_handler, run_controller
from gpuaas_sdk.runtime.worker import Handler
from slurm_app.reconcilers import add, decommission, deploy, drain, observe, people, preflight, recover, remove, replace
from slurm_app.store import Store

Reconcile = Callable[[OperationContext, Store], Awaitable[JsonObject]]
HANDLERS: dict[str, Reconcile] = {
    "deploy": deploy.reconcile,
    "add": add.reconcile,
    "drain": drain.reconcile,
    "resume": drain.resume,
    "remove": remove.reconcile,
    "replace": replace.reconcile,
    "recover": recover.reconcile,
    people.KIND: people.reconcile,
    "decommission": decommission.reconcile,
}


def run() -> None:
    with closing(Store()) as store:
        handlers = {kind: _with_store(reconcile, store) for kind, reconcile in HANDLERS.items()}
        handlers["preflight"] = preflight_handler(preflight.check)
        run_controller(handlers, observe=observe.observe)


def _with_store(reconcile: Reconcile, store: Store) -> Handler:
    async def handle(operation: OperationContext) -> JsonObject:
        return await reconcile(operation, store)

    return handle
