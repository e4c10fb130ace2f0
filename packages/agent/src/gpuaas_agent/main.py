"""The command `gpuaas-agent`."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from gpuaas_agent import __version__
from gpuaas_agent.agent import run_agent
from gpuaas_agent.errors import AgentError
from gpuaas_agent.inventory import read_host_inventory, read_inventory
from gpuaas_agent.logs import configure_logging
from gpuaas_agent.lxd import Lxd
from gpuaas_agent.settings import HELP, Hosting, Settings, read_settings
from gpuaas_agent.unit import ENVIRONMENT_FILE, install_unit

log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuaas-agent",
        description="Realises allocations as machines on this host. It dials out to the platform and never"
        " listens; it may be stopped or killed at any moment, and goes on where it was when started again.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    run = commands.add_parser(
        "run",
        help="enrol if needed, link to the platform and work until SIGTERM",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--log-format",
        choices=["json", "plain"],
        default=os.environ.get("GPUAAS_LOG_FORMAT", "json"),
        help="of the lines on stderr (default json, or GPUAAS_LOG_FORMAT)",
    )
    run.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info", help="default info")
    commands.add_parser("inventory", help="print as JSON what this host would report, and exit")
    unit = commands.add_parser("install-unit", help="let systemd run the agent after every boot")
    unit.add_argument(
        "--environment-file",
        type=Path,
        default=ENVIRONMENT_FILE,
        help=f"with the settings below, one NAME=value per line (default {ENVIRONMENT_FILE})",
    )
    unit.add_argument("--start", action="store_true", help="start it now, too")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    configure_logging(
        plain=getattr(options, "log_format", "plain") == "plain",
        level=getattr(options, "log_level", "warning"),
    )
    if options.command == "install-unit":
        return run_install(options.environment_file, start=options.start)
    try:
        settings = read_settings(os.environ)
    except AgentError as error:
        log.error("%s", error)
        return EXIT_USAGE
    try:
        if options.command == "inventory":
            asyncio.run(print_inventory(settings))
        else:
            asyncio.run(until_stopped(run_agent(settings)))
    except AgentError as error:
        log.error("%s", error)
        return EXIT_FAILED
    return 0


def run_install(environment_file: Path, *, start: bool) -> int:
    try:
        install_unit(environment_file, start=start)
    except AgentError as error:
        log.error("%s", error)
        return EXIT_FAILED
    return 0


async def print_inventory(settings: Settings) -> None:
    if settings.hosting == Hosting.HOST:
        sys.stdout.write(f"{read_host_inventory(settings).model_dump_json(indent=2)}\n")
        return
    async with Lxd(settings.lxd_socket) as lxd:
        inventory = await read_inventory(settings, lxd)
    sys.stdout.write(f"{inventory.model_dump_json(indent=2)}\n")


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Work until SIGTERM or SIGINT, then end in order; unfinished tasks are delivered again later."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
        return
    log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
