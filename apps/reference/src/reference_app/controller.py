"""The controller process: a service account, the public API, and one handler for each kind of operation."""

import asyncio
import logging
import os
from pathlib import Path

from gpuaas_sdk import Controller, GpuaasClient
from gpuaas_sdk.runtime.errors import ControllerMisconfiguredError
from reference_app.operations import decommission, deploy, lifecycle, members

ACCOUNT_SETTING = "GPUAAS_SERVICE_ACCOUNT_FILE"
HANDLERS = {
    "deploy": deploy.reconcile,
    "start": lifecycle.start,
    "stop": lifecycle.stop,
    "restart": lifecycle.restart,
    "upgrade": lifecycle.upgrade,
    "configure": lifecycle.configure,
    "decommission": decommission.reconcile,
    "add": members.add,
    "drain": members.drain,
    "resume": members.resume,
    "remove": members.remove,
    "replace": members.replace,
    "recover": members.recover,
    "resize": members.resize,
}


def run() -> None:
    account = os.environ.get(ACCOUNT_SETTING)
    if not account:
        raise ControllerMisconfiguredError(
            f"{ACCOUNT_SETTING} must name the file that `gpuaas service-account create` wrote"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # One line for every request and every SSH channel is too much.
    for chatty in ("httpx", "asyncssh"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    asyncio.run(_serve(Path(account)))


async def _serve(account: Path) -> None:
    async with GpuaasClient.from_service_account_file(account, api_url=os.environ.get("GPUAAS_API_URL")) as client:
        await Controller(client, HANDLERS).run_until_signalled()
