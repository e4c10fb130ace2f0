"""Roll call as an app on GPUaaS."""

import argparse
import sys
from pathlib import Path

from gpuaas_sdk import ControllerMisconfiguredError

from reference_app.bundle import RUNTIME_VERSION, make_bundle
from reference_app.controller import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="reference-app", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    bundle = commands.add_parser("bundle", help="pack the software that machines receive")
    bundle.add_argument("--output", type=Path, required=True)
    bundle.add_argument("--runtime-version", default=RUNTIME_VERSION)
    commands.add_parser("run", help="work on the app's operations until stopped; needs GPUAAS_SERVICE_ACCOUNT_FILE")
    arguments = parser.parse_args()
    try:
        if arguments.command == "run":
            run()
        else:
            make_bundle(arguments.output, arguments.runtime_version)
    except (ControllerMisconfiguredError, OSError, ValueError) as error:
        sys.exit(f"reference-app: {error}")
