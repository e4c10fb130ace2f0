"""The `slurm-app` program."""

import argparse
import sys
from pathlib import Path

from gpuaas_sdk import BundleError, ControllerMisconfiguredError, PackageBundle
from gpuaas_sdk.bundles.building import CACHE_SETTING, cache_directory
from gpuaas_sdk.runtime.program import ACCOUNT_SETTING
from slurm_app.bundle import make_bundle
from slurm_app.controller import run
from slurm_app.errors import SlurmAppError
from slurm_app.publishing import PASSWORD_SETTING, Publisher, publish
from slurm_app.readiness import read_results, render

INTERRUPTED = 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slurm-app", description="Slurm as an app on GPUaaS")
    commands = parser.add_subparsers(dest="command", required=True)
    bundle = commands.add_parser("bundle", help="pack the Debian packages that a slice image lacks")
    bundle.add_argument("--output", type=Path, required=True)
    bundle.add_argument("--dpkg-status", type=Path, required=True, help="/var/lib/dpkg/status of the image")
    bundle.add_argument("--cache", type=Path, default=cache_directory(), help=f"or {CACHE_SETTING}")
    bundle.add_argument("--refresh", action="store_true", help="ask the archive again for newer packages")
    publishing = bundle.add_argument_group(
        "publishing", "sign the packages and publish them to the platform, with the login of `gpuaas`"
    )
    publishing.add_argument("--publish", action="store_true", help="as an artifact of the app; needs --key")
    publishing.add_argument(
        "--key", type=Path, help=f"private key that the app trusts (PEM); its password, if any, in {PASSWORD_SETTING}"
    )
    publishing.add_argument("--api-url", help="address of the platform, or GPUAAS_API_URL")
    publishing.add_argument("--context", help="named context of `gpuaas login`, or GPUAAS_CONTEXT")
    commands.add_parser("run", help=f"work on the app's operations until stopped; needs {ACCOUNT_SETTING}")
    readiness = commands.add_parser("readiness", help="the readiness page, from what the smoke suite saw")
    readiness.add_argument("results", type=Path, help="its JSON file; where there is none, nothing is ready")
    return parser


def _bundle(arguments: argparse.Namespace) -> None:
    def say(line: str) -> None:
        print(line, flush=True)

    def make() -> PackageBundle:
        return make_bundle(
            output=arguments.output,
            dpkg_status=arguments.dpkg_status,
            cache=arguments.cache,
            refresh=arguments.refresh,
            say=say,
        )

    if not arguments.publish:
        make()
        return
    publish(Publisher.read(arguments.key, api_url=arguments.api_url, context=arguments.context), make, say)


def _parse() -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.command == "bundle":
        if arguments.publish and arguments.key is None:
            parser.error("--publish needs --key FILE: machines are given nothing that nobody has signed")
        if not arguments.publish and (arguments.key or arguments.api_url or arguments.context):
            parser.error("--key, --api-url and --context go with --publish")
    return arguments


def main() -> None:
    arguments = _parse()
    try:
        if arguments.command == "run":
            run()
        elif arguments.command == "readiness":
            print(render(read_results(arguments.results)), end="")
        else:
            _bundle(arguments)
    except (SlurmAppError, BundleError, ControllerMisconfiguredError, OSError, ValueError) as error:
        sys.exit(f"slurm-app: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
