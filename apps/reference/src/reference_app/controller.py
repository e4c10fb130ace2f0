"""The controller process: a service account, the public API, and one handler for each kind of operation."""

from gpuaas_sdk import preflight_handler, run_controller

from reference_app.observing import OBSERVE_SECONDS, observe
from reference_app.operations import decommission, deploy, lifecycle, members, preflight

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
    "preflight": preflight_handler(preflight.look),
}


def run() -> None:
    run_controller(HANDLERS, observe=observe, observe_seconds=OBSERVE_SECONDS)
