"""The controller process: a service account, the public API, and one handler for each kind of operation."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import Controller, GpuaasClient, OperationContext, preflight_handler
from gpuaas_sdk.runtime.worker import Handler
from slurm_app.errors import RefusedError
from slurm_app.reconcilers import add, decommission, deploy, drain, observe, preflight, recover, remove, replace
from slurm_app.store import Store

ACCOUNT_SETTING = "GPUAAS_SERVICE_ACCOUNT_FILE"
Reconcile = Callable[[OperationContext, Store], Awaitable[JsonObject]]
HANDLERS: dict[str, Reconcile] = {
    "deploy": deploy.reconcile,
    "add": add.reconcile,
    "drain": drain.reconcile,
    "resume": drain.resume,
    "remove": remove.reconcile,
    "replace": replace.reconcile,
    "recover": recover.reconcile,
    "decommission": decommission.reconcile,
}


def run() -> None:
    account = os.environ.get(ACCOUNT_SETTING)
    if not account:
        raise RefusedError(
            "not_configured",
            f"{ACCOUNT_SETTING} must name the file that `gpuaas service-account create` wrote",
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # One line for every request and every SSH channel is too much.
    for chatty in ("httpx", "asyncssh"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    asyncio.run(_serve(Path(account)))


async def _serve(account: Path) -> None:
    async with GpuaasClient.from_service_account_file(account, api_url=os.environ.get("GPUAAS_API_URL")) as client:
        store = Store()
        try:
            handlers = {kind: _with_store(reconcile, store) for kind, reconcile in HANDLERS.items()}
            handlers["preflight"] = preflight_handler(preflight.check)
            await Controller(client, handlers, observe=observe.observe).run_until_signalled()
        finally:
            store.close()


def _with_store(reconcile: Reconcile, store: Store) -> Handler:
    async def handle(operation: OperationContext) -> JsonObject:
        return await reconcile(operation, store)

    return handle
