"""The main program of a controller: a service account in a file, a log on standard error, an end by signal."""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.runtime.controller import Controller
from gpuaas_sdk.runtime.errors import ControllerMisconfiguredError
from gpuaas_sdk.runtime.worker import Handler

ACCOUNT_SETTING = "GPUAAS_SERVICE_ACCOUNT_FILE"
URL_SETTING = "GPUAAS_API_URL"


def run_controller(handlers: Mapping[str, Handler], **options: Any) -> None:
    """Run until SIGTERM or SIGINT. `options` go to the Controller. The account's file is the only credential; it also
    says where the platform is, unless GPUAAS_API_URL does."""
    account = os.environ.get(ACCOUNT_SETTING)
    if not account:
        raise ControllerMisconfiguredError(
            f"{ACCOUNT_SETTING} must name the file that `gpuaas service-account create` wrote"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # One line for every request and every SSH channel is too much.
    for chatty in ("httpx", "asyncssh"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    asyncio.run(_serve(Path(account), handlers, options))


async def _serve(account: Path, handlers: Mapping[str, Handler], options: dict[str, Any]) -> None:
    async with GpuaasClient.from_service_account_file(account, api_url=os.environ.get(URL_SETTING)) as client:
        await Controller(client, handlers, **options).run_until_signalled()
