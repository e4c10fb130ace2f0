"""The `slurm-app` program."""

import argparse
import sys
from pathlib import Path

from gpuaas_sdk.runtime.errors import ControllerMisconfiguredError
from slurm_app.bundle import CACHE_SETTING, cache_directory, make_bundle
from slurm_app.controller import ACCOUNT_SETTING, run
from slurm_app.errors import SlurmAppError
from slurm_app.readiness import read_results, render


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slurm-app", description="Slurm as an app on GPUaaS")
    commands = parser.add_subparsers(dest="command", required=True)
    bundle = commands.add_parser("bundle", help="pack the Debian packages that a slice image lacks")
    bundle.add_argument("--output", type=Path, required=True)
    bundle.add_argument("--dpkg-status", type=Path, required=True, help="/var/lib/dpkg/status of the image")
    bundle.add_argument("--cache", type=Path, default=cache_directory(), help=f"or {CACHE_SETTING}")
    bundle.add_argument("--refresh", action="store_true", help="ask the archive again for newer packages")
    commands.add_parser("run", help=f"work on the app's operations until stopped; needs {ACCOUNT_SETTING}")
    readiness = commands.add_parser("readiness", help="the readiness page, from what the smoke suite saw")
    readiness.add_argument("results", type=Path, help="its JSON file; where there is none, nothing is ready")
    return parser


def main() -> None:
    arguments = _parser().parse_args()
    try:
        if arguments.command == "run":
            run()
            return
        if arguments.command == "readiness":
            print(render(read_results(arguments.results)), end="")
            return
        make_bundle(
            output=arguments.output,
            dpkg_status=arguments.dpkg_status,
            cache=arguments.cache,
            refresh=arguments.refresh,
            say=lambda line: print(line, flush=True),
        )
    except (SlurmAppError, ControllerMisconfiguredError, OSError, ValueError) as error:
        sys.exit(f"slurm-app: {error}")
